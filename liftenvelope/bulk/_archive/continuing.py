"""Check that a stream is the one of an archive, or a restored copy of that one."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from liftenvelope.bulk._reads.reading import read
from liftenvelope.bulk.ranges import was_recreated
from liftenvelope.errors import OffsetOutOfRangeError
from liftenvelope.jetstream.api import is_restored

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk.access import Access, Source
    from liftenvelope.bulk.sources import RangedStream
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["MESSAGE_ID", "check_same_stream", "restore_prefix"]

#: Header of a restored message, which has the place of its row in the archive.
MESSAGE_ID: Final = "Nats-Msg-Id"


def restore_prefix(stream: str, partition: int) -> str:
    """Return the beginning of the ids of restored messages; the offset in the archive follows."""
    return f"restore-{stream}-{partition}-"


def check_same_stream(
    source: Source,
    opened: RangedStream,
    access: Access | None,
    partition: int,
    reached: int,
    times_ns: tuple[int, int],
) -> None:
    """Check that an archive can go on with a stream.

    Args:
        source: Servers of the stream.
        opened: The stream.
        access: Login and limits.
        partition: Number of the partition.
        reached: Next offset of the archive.
        times_ns: Creation times of the archived stream and of this one, in ns since 1970; 0 if not known.

    Raises:
        OffsetOutOfRangeError: The stream is not the archived one, and its oldest message is neither of a
            backup nor of the archive.
        LiftEnvelopeError: The oldest message can't be read.
    """
    known, created = times_ns
    if not was_recreated(known, created) or _has_restored(source, opened.stream, access, partition, created):
        return
    text = (
        f"{opened.stream}[{partition}]: the stream must be the archived one, created at {_moment(known)}, "
        f"got one created at {_moment(created)}: choose another folder"
    )
    raise OffsetOutOfRangeError(text, opened.stream, partition, reached, opened.newest(partition))


def _moment(time_ns: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_ns // 1000)).isoformat()


def _has_restored(
    source: Source, stream: str, access: Access | None, partition: int, created_ns: int
) -> bool:
    """Return True if the oldest message is of a backup, or was restored from the archive to its offset."""
    columns = ["offset", "timestamp", "headers"]
    reader = read(source, stream, partitions=partition, columns=columns, batch_rows=1, access=access)
    with contextlib.closing(reader):
        batch = next(iter(reader), None)
    if batch is None:
        return False
    (offset,), (headers,) = batch["offset"].to_pylist(), batch["headers"].to_pylist()
    (moment,) = batch["timestamp"].cast(pa.int64()).to_pylist()
    ident = f"{restore_prefix(stream, partition)}{offset}".encode()
    return is_restored(created_ns, moment) or dict(headers or ()).get(MESSAGE_ID) == ident
