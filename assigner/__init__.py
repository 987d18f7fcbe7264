"""Kafka Assigner: decides which consumer works on which partition, and hands partitions over safely."""

from importlib.metadata import version

__version__ = version("kafka-assigner")
