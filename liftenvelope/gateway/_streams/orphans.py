"""Removes orphans: partitions in JetStream that were made for a stream whose creation was undone.

A gateway that stands still while it creates a stream is taken for dead, and another one removes the stream.
When the first one goes on, it creates more partitions, then removes them. If it is killed in between, they
stay: they record their subjects, and nobody can create a stream of that name.

A partition without a record may also hold messages that were acked: the bucket of the records was deleted, or
an administrator has restored the partition of a deleted stream. So only those of a stream that was never
ready are removed. Its id stays in the bucket, in the marker of its removal and in later records of its name.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftenvelope.errors import StreamNotFoundError
from liftenvelope.gateway._cluster.records import StreamPhase, StreamRecord
from liftenvelope.gateway._partitions.storage import RECORD_ID
from liftenvelope.gateway._protocol.names import PARTITION_PREFIX
from liftenvelope.gateway._streams.handing_over import hand_over

if TYPE_CHECKING:
    from liftenvelope.gateway._core import Core

__all__ = ["remove_all_orphans", "remove_orphans_of"]

_log: Final = logging.getLogger("liftenvelope.gateway")


class _Partition(NamedTuple):
    """Id of the record that a partition was made for, and its recorded subjects."""

    record_id: str
    subjects: tuple[str, ...]


async def remove_all_orphans(core: Core) -> None:
    """Remove all orphans.

    Raises:
        RpcError: UNAVAILABLE: a copy has not yet received all messages of an orphan.
        LiftEnvelopeError: JetStream does not answer or fails.
    """
    if not core.registry.has_undone:
        return
    for name, found in (await core.storage.listed(_partition, core.js.api.timeout)).items():
        await _remove_orphan(core, name, found, timeout=0)


async def remove_orphans_of(core: Core, record: StreamRecord, timeout: float) -> bool:
    """Remove the orphans that have the names of a stream's partitions; return whether there were any.

    Args:
        core: The gateway's parts.
        record: Record of the stream, which is not stored.
        timeout: Seconds to wait for the copies of an orphan.

    Raises:
        RpcError, LiftEnvelopeError: As for :func:`remove_all_orphans`.
    """
    removed = False
    for stream in map(record.stream_of, range(len(record.partitions))):
        with suppress(StreamNotFoundError):
            found = await core.js.api.request_as(_partition, f"STREAM.INFO.{stream}")
            removed = await _remove_orphan(core, stream, found, timeout) or removed
    return removed


async def _remove_orphan(core: Core, stream: str, found: _Partition, timeout: float) -> bool:
    """Remove a partition if it is an orphan; return whether it was one."""
    key = stream.removeprefix(PARTITION_PREFIX).rpartition("_")[0]
    record = core.registry.keyed(key)
    if found.record_id not in core.registry.undone(key) or (record and record.id == found.record_id):
        return False
    orphan = StreamRecord(
        name=stream, subject="", id=found.record_id, state=StreamPhase.DELETING, jetstream=stream
    )
    async with core.changing.held(stream, *found.subjects):
        await hand_over(core, orphan, 0, timeout)
        await core.storage.delete(orphan, 0)
    _log.warning("removed %s, which a gateway has left of a stream that was never ready", stream)
    return True


def _partition(info: dict[str, Any]) -> _Partition:
    config = info["config"]
    record_id = (config.get("metadata") or {}).get(RECORD_ID, "")
    return _Partition(record_id, tuple(config.get("subjects") or ()))
