"""Spark's part, played without Spark: queries, state, rows for sinks."""
