"""Tests of Kafka Assigner."""
