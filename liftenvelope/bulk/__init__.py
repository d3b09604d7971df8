"""Read and write streams as Arrow, with a blocking API, at the speed of the server. See docs/bulk.md."""

from liftenvelope.bulk._archive import Archived, to_parquet
from liftenvelope.bulk._reading import count, read, tail
from liftenvelope.bulk._scan import Scan, scan
from liftenvelope.bulk.access import Access
from liftenvelope.bulk.errors import (
    ArchiveBusyError,
    ReadLostError,
    RetentionError,
    ServerProtocolError,
    WriteFailedError,
)
from liftenvelope.bulk.outgoing import Written
from liftenvelope.bulk.ranges import Gap, Progress
from liftenvelope.bulk.writing import write

__all__ = [
    "Access",
    "ArchiveBusyError",
    "Archived",
    "Gap",
    "Progress",
    "ReadLostError",
    "RetentionError",
    "Scan",
    "ServerProtocolError",
    "WriteFailedError",
    "Written",
    "count",
    "read",
    "scan",
    "tail",
    "to_parquet",
    "write",
]
