"""Kafka Assigner: decides which consumer works on which partition, and hands partitions over safely."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kafka-assigner")
except PackageNotFoundError:
    # Run from a checkout or a zip file that was never installed.
    __version__ = "unknown"
