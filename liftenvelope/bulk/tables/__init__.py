"""Streams into Iceberg and Delta tables, each message once. See docs/tables.md."""

from liftenvelope.bulk.tables._formats import delta_writer, iceberg_writer, to_delta, to_iceberg
from liftenvelope.bulk.tables._settings import TableOptions
from liftenvelope.bulk.tables._writer import TableWriter, TableWritten

__all__ = [
    "TableOptions",
    "TableWriter",
    "TableWritten",
    "delta_writer",
    "iceberg_writer",
    "to_delta",
    "to_iceberg",
]
