"""The fenced sink for SQL databases."""
