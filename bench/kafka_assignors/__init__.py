"""Kafka's own assignors, run in a Java process beside ours."""
