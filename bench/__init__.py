"""Benchmarks: each module is a command that prints a table (`python -m bench.store`)."""
