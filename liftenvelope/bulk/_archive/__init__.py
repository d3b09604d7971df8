"""Archives of streams in Parquet files, and their restore."""
