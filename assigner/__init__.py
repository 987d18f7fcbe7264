"""Kafka Assigner: decides which consumer works on which partition, and hands partitions over safely."""

__version__: str


def __getattr__(name: str) -> str:
    # Looked up when asked for: it takes milliseconds, which a program that imports the client need not wait for.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kafka-assigner")
    except PackageNotFoundError:
        # Run from a checkout or a zip file that was never installed.
        return "unknown"
