"""Measures how far consumer groups lag behind their partitions, when metrics are read.

The gateway that coordinates a group measures it, so a group counts once however many gateways there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from liftenvelope._checks import is_encodable
from liftenvelope._wire import GROUP_CURSOR
from liftenvelope.gateway._readers.cursors import cursor_key
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.rpc.status import RpcError

if TYPE_CHECKING:
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._partitions.storage import PartitionState
    from liftenvelope.gateway._readers.cursors import CursorService
    from liftenvelope.gateway._readers.groups import GroupFace
    from liftenvelope.group.state import GroupState, TopicSpec

__all__ = ["GroupLag", "group_lags"]


class GroupLag(NamedTuple):
    """Lag of a group in a partition.

    Attributes:
        group: Name of the group.
        stream: Name of the stream, or of the topic.
        partition: Number of the partition.
        messages: Offsets from the group's committed position to the end of the partition. Without a commit,
            all that the partition holds.
    """

    group: str
    stream: str
    partition: int
    messages: int


class _GroupPosition(NamedTuple):
    """Position of a group in a partition.

    Attributes:
        lag: Group, stream and partition; the messages are not known yet.
        place: JetStream stream that holds the partition.
        next: Offset to read next. Unused if there is a cursor.
        cursor: Key of the cursor that holds the position; empty if the group itself does.
    """

    lag: GroupLag
    place: str
    next: int
    cursor: str


async def group_lags(core: Core, groups: GroupFace, cursors: CursorService) -> list[GroupLag]:
    """Return the lags of the groups that this gateway coordinates, at most ``max_metric_labels``.

    Partitions that are a subject of a shared JetStream stream are left out: only a consumer could count their
    messages.

    Raises:
        LiftEnvelopeError: JetStream does not answer.
    """
    rows = list(islice(_positions(core, groups), core.options.limits.max_metric_labels))
    states, stored = await asyncio.gather(
        core.storage.states(list({row.place for row in rows})),
        cursors.offsets([row.cursor for row in rows if row.cursor]),
    )
    return [
        _measured(row, states[row.place], stored.get(row.cursor, -1) + 1 if row.cursor else row.next)
        for row in rows
        if row.place in states
    ]


def _positions(core: Core, groups: GroupFace) -> Iterator[_GroupPosition]:
    for state in groups.hosted:
        for topic, spec in sorted(state.topics.items()):
            if not is_encodable(state.name + topic):
                continue
            for number in range(spec.partitions):
                row = _position(core, state, spec, number)
                if row is not None:
                    yield row


def _position(core: Core, state: GroupState, spec: TopicSpec, number: int) -> _GroupPosition | None:
    if spec.places:
        place = "" if spec.places[number].subject else spec.places[number].stream
    else:
        record = core.registry.known(spec.name)
        has_it = record is not None and number < len(record.partitions)
        place = record.stream_of(number) if record is not None and has_it else ""
    if not place:
        return None
    lag = GroupLag(state.name, spec.name, number, 0)
    if not state.immediate:
        return _GroupPosition(lag, place, state.offsets.get(TopicPartition(spec.name, number), 0), "")
    try:
        return _GroupPosition(lag, place, 0, cursor_key(GROUP_CURSOR + state.name, spec.name, number))
    except RpcError:  # a name that no cursor can have, so the group commits nothing
        return _GroupPosition(lag, place, 0, "")


def _measured(row: _GroupPosition, state: PartitionState, position: int) -> GroupLag:
    return row.lag._replace(messages=max(state.newest + 1 - max(position, state.oldest), 0))
