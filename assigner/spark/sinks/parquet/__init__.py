"""The fenced sink for directories of Parquet files."""
