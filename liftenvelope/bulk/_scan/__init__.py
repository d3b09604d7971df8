"""Lazy scans of streams, for polars and DuckDB."""
