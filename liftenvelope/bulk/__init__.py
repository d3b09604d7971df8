"""Streams as Arrow, blocking, at the speed of the server. See docs/bulk.md."""

from liftenvelope.bulk.access import Access
from liftenvelope.bulk.errors import ReadLostError, RetentionError, ServerProtocolError
from liftenvelope.bulk.ranges import Gap, Progress
from liftenvelope.bulk.reading import count, read, tail

__all__ = [
    "Access",
    "Gap",
    "Progress",
    "ReadLostError",
    "RetentionError",
    "ServerProtocolError",
    "count",
    "read",
    "tail",
]
