"""Hands the subject of a partition over to the partitions that copy from it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway._cluster.records import StreamPhase
from liftenvelope.gateway._partitions.recordings import recorded_subject, width_order

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core

__all__ = ["copies_of", "hand_over", "with_sources"]


async def hand_over(core: Core, record: StreamRecord, partition: int, timeout: float) -> None:
    """Stop recording a partition, and attach the partitions that copied from it.

    The copy with the widest subject takes over its subject. The others copy from it if it covers theirs.
    Before that, all copies must have received all messages of the partition, so that none is lost. A copy
    whose JetStream stream was removed is left out. After an error of one copy, the others are attached,
    then it is raised. The caller holds the stream's lock of ``Core.changing``, which the copies share:
    their subjects overlap.

    Args:
        core: The gateway's parts.
        record: Record of the partition's stream.
        partition: Number of the partition.
        timeout: Seconds to wait for the copies.

    Raises:
        RpcError: UNAVAILABLE: a copy has not received all messages in that time. The partition keeps its
            messages, and its copies go on copying. FAILED_PRECONDITION: a copy can't record the subject.
        LiftEnvelopeError: JetStream does not answer or fails.
    """
    copies = copies_of(core, record, partition)
    try:
        if copies or record.state is StreamPhase.READY:
            await core.storage.detach(record, partition)
    except StreamNotFoundError:
        return  # already removed by the gateway that began to
    await core.storage.wait_copied(copies, timeout)
    errors: list[LiftEnvelopeError] = []
    for other, number in copies:
        try:
            source = {number: await core.storage.attach(other, number)}
            await core.registry.change(other.name, partial(with_sources, other, source))
        except StreamNotFoundError:
            continue
        except LiftEnvelopeError as exc:
            errors.append(exc)
    if errors:
        raise errors[0]


def copies_of(core: Core, record: StreamRecord, partition: int) -> list[tuple[StreamRecord, int]]:
    """Return the partitions that copy from a partition, by their records and numbers; the widest come first.

    If a narrower one recorded its subject first, JetStream would refuse the wider one: the subjects overlap.
    """
    name = record.stream_of(partition)
    copies = [
        (other, number)
        for other in core.registry
        for number, part in enumerate(other.partitions)
        if part.source == name and part.records
    ]
    return sorted(copies, key=lambda copy: width_order(recorded_subject(*copy)))


def with_sources(before: StreamRecord, sources: dict[int, str | None], record: StreamRecord) -> StreamRecord:
    """Return a copy of a record with new sources of partitions, or the record of a later stream unchanged.

    Args:
        before: Record of the stream whose partitions have the sources.
        sources: Sources by the numbers of the partitions.
        record: Record that is stored now.
    """
    if record.id != before.id:
        return record
    parts = {number: replace(record.partitions[number], source=source) for number, source in sources.items()}
    return record.with_partitions(parts)
