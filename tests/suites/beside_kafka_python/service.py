"""Stands for a module of kafka-python's tests that its archive leaves out: the servers that they start."""

from __future__ import annotations


class ExternalService:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class SpawnedService:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError("these tests start no servers: give them one by KAFKA_URI")
