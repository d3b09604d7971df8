"""Which offsets a partition has, so that a group is not set to one that does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from liftenvelope.errors import (
    CallTimeoutError,
    GroupError,
    JetStreamError,
    LiftEnvelopeError,
    MessageNotFoundError,
    StreamNotFoundError,
    TransportError,
)
from liftenvelope.group.errors import GroupRequestError, GroupUnavailableError
from liftenvelope.group.state import Place, TopicSpec
from liftenvelope.jetstream import JetStream, Stream

if TYPE_CHECKING:
    from liftenvelope.group.topics import TopicSource

__all__ = ["Bounds", "clamped", "jetstream_bounds", "place_bounds", "source_bounds"]

#: Tells the oldest offset of a topic's partition, and the one that its next message gets.
Bounds: TypeAlias = Callable[[TopicSpec, int], Awaitable[tuple[int, int]]]
_ANY: tuple[int, int] = (0, 2**63 - 1)


async def place_bounds(js: JetStream, place: Place) -> tuple[int, int]:
    """The oldest offset in a place, and the one after the newest of its stream.

    An offset is a sequence less one, as the gateway has it.

    Raises:
        StreamNotFoundError: There is no such stream.
        JetStreamError, CallTimeoutError, TransportError: It could not be found out.
    """
    stream: Stream = await js.stream(place.stream)
    state = stream.cached_info.state
    end = state.last_seq
    if not place.subject:
        return max(min(state.first_seq - 1, end), 0), end
    try:
        first = await stream.get_message(1, next_by_subject=place.subject, direct=False)
    except MessageNotFoundError:
        return end, end
    return first.sequence - 1, max(end, first.sequence)


def jetstream_bounds(js: JetStream) -> Bounds:
    """Bounds of partitions that JetStream keeps; of others any offset is taken to exist."""

    async def bounds(spec: TopicSpec, partition: int) -> tuple[int, int]:
        if not spec.places:
            return _ANY
        try:
            return await place_bounds(js, spec.places[partition])
        except StreamNotFoundError as exc:
            raise GroupRequestError(f"topic {spec.name!r}: {exc.description}") from exc
        except (JetStreamError, CallTimeoutError, TransportError) as exc:
            raise GroupUnavailableError(f"the offsets of {spec.name!r} are not known: {exc}") from exc

    return bounds


def source_bounds(sources: Iterable[TopicSource], others: Bounds) -> Bounds:
    """Bounds of the partitions of these topics, asked of themselves; of other topics by ``others``."""
    known = {source.spec.name: source for source in sources}

    async def bounds(spec: TopicSpec, partition: int) -> tuple[int, int]:
        source = known.get(spec.name)
        if source is None or spec.places:
            return await others(spec, partition)
        try:
            return await source.bounds(partition)
        except GroupError:
            raise
        except LiftEnvelopeError as exc:
            kind = GroupUnavailableError if exc.retriable else GroupRequestError
            raise kind(f"the offsets of {spec.name!r} are not known: {exc}") from exc

    return bounds


def clamped(offset: int, bounds: tuple[int, int]) -> int:
    """The offset that exists and is nearest.

    Example:
        >>> clamped(-1, (5, 9)), clamped(7, (5, 9)), clamped(10, (5, 9))
        (5, 7, 9)
    """
    return min(max(offset, bounds[0]), bounds[1])
