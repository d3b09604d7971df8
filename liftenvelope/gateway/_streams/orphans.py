"""Removes orphans: partitions in JetStream that were made for a stream which is removed already.

A gateway that stands still while it creates a stream is taken for dead, and another one removes the stream.
When the first one goes on, it creates more partitions, then removes them. If it is killed in between, they
stay: they record their subjects, and nobody can create a stream of that name.

A partition whose record was lost, because the bucket of the records was deleted or an older one restored, is
no orphan. It holds messages that were acked. Two observations tell them apart, and both must hold:

- An orphan never had a leader, so it has no consumers. The ack consumer of a leader outlives all gateways.
- An orphan was made after the bucket of the records.
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
from liftenvelope.jetstream.api import parse_ns

if TYPE_CHECKING:
    from liftenvelope.gateway._core import Core

__all__ = ["remove_all_orphans", "remove_orphans_of"]

_log: Final = logging.getLogger("liftenvelope.gateway")


class _Unused(NamedTuple):
    """Partition without consumers: id of its record, recorded subjects, and time of its creation."""

    record_id: str
    subjects: tuple[str, ...]
    created_ns: int


async def remove_all_orphans(core: Core) -> None:
    """Remove all orphans.

    Raises:
        RpcError: UNAVAILABLE: a copy has not yet received all messages of an orphan.
        LiftEnvelopeError: JetStream does not answer or fails.
    """
    found = await core.storage.listed(_unused, core.js.api.timeout)
    for name, unused in found.items():
        if unused is not None and name.startswith(PARTITION_PREFIX) and not _is_known(core, name):
            await _remove(core, name, timeout=0)


async def remove_orphans_of(core: Core, record: StreamRecord, timeout: float) -> bool:
    """Remove the orphans that have the names of a stream's partitions; return whether there were any.

    Args:
        core: The gateway's parts.
        record: Record of the stream, which is not stored.
        timeout: Seconds to wait for the copies of an orphan.

    Raises:
        RpcError, LiftEnvelopeError: As for :func:`remove_all_orphans`.
    """
    removed = [
        await _remove(core, record.stream_of(number), timeout) for number in range(len(record.partitions))
    ]
    return any(removed)


def _is_known(core: Core, stream: str) -> bool:
    found = core.partition_of(stream)
    return found is not None and found[0].has_partition(found[1])


async def _remove(core: Core, stream: str, timeout: float) -> bool:
    """Remove a partition if it is an orphan; return whether it was one."""
    # The partition first: a stream that is being created has its record before its partitions.
    found = None
    with suppress(StreamNotFoundError):
        found = await core.js.api.request_as(_unused, f"STREAM.INFO.{stream}")
    if found is None:
        return False
    record = await core.registry.read(stream.removeprefix(PARTITION_PREFIX).rpartition("_")[0])
    if record is not None and record.id == found.record_id:
        return False
    if found.created_ns <= await core.registry.created_ns():
        return False
    orphan = StreamRecord(
        name=stream, subject="", id=found.record_id, state=StreamPhase.DELETING, jetstream=stream
    )
    async with core.changing.held(stream, *found.subjects):
        await hand_over(core, orphan, 0, timeout)
        await core.storage.delete(orphan, 0)
    _log.warning("removed %s, which was made for a stream that is removed", stream)
    return True


def _unused(info: dict[str, Any]) -> _Unused | None:
    """Return the partition in a JetStream stream; None if it has consumers, or is no partition."""
    config = info["config"]
    record_id = (config.get("metadata") or {}).get(RECORD_ID)
    if not record_id or info["state"]["consumer_count"]:
        return None
    return _Unused(record_id, tuple(config.get("subjects") or ()), parse_ns(info["created"]))
