"""Offset bounds of partitions, so that a group is never set to an offset that does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    MessageNotFoundError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.group.errors import GroupRequestError, GroupUnavailableError
from liftenvelope.group.state import TopicSpec
from liftenvelope.jetstream import JetStream, Stream

__all__ = ["Bounds", "clamped", "jetstream_bounds", "stream_bounds"]

#: Returns the oldest offset of a topic's partition, and the offset of its next message.
Bounds: TypeAlias = Callable[[TopicSpec, int], Awaitable[tuple[int, int]]]
_ANY: tuple[int, int] = (0, 2**63 - 1)


async def stream_bounds(stream: Stream, subject: str) -> tuple[int, int]:
    """Return the oldest offset of a subject, and the offset after the newest message of its stream.

    An offset is the stream sequence minus one, as in the gateway.

    Args:
        stream: The stream, which was just looked up.
        subject: The subject; empty for the whole stream.

    Raises:
        JetStreamError, CallTimeoutError, TransportError: The bounds could not be read.
    """
    state = stream.cached_info.state
    end = state.last_seq
    if not subject:
        return max(min(state.first_seq - 1, end), 0), end
    try:
        first = await stream.get_message(1, next_by_subject=subject, direct=False)
    except MessageNotFoundError:
        return end, end
    return first.sequence - 1, max(end, first.sequence)


def jetstream_bounds(js: JetStream) -> Bounds:
    """Return bounds for partitions in JetStream; for any other partition every offset is accepted."""

    async def bounds(spec: TopicSpec, partition: int) -> tuple[int, int]:
        if not spec.places:
            return _ANY
        try:
            place = spec.places[partition]
            return await stream_bounds(await js.stream(place.stream), place.subject)
        except StreamNotFoundError as exc:
            raise GroupRequestError(f"topic {spec.name!r}: {exc.description}") from exc
        except UsageError as exc:  # a coordinator looks at places only when it needs them
            raise GroupRequestError(f"topic {spec.name!r} has a malformed place: {exc}") from exc
        except (JetStreamError, CallTimeoutError, TransportError) as exc:
            raise GroupUnavailableError(f"can't read the offsets of topic {spec.name!r}: {exc}") from exc

    return bounds


def clamped(offset: int, bounds: tuple[int, int]) -> int:
    """Return the nearest offset within the bounds.

    Example:
        >>> clamped(-1, (5, 9)), clamped(7, (5, 9)), clamped(10, (5, 9))
        (5, 7, 9)
    """
    return min(max(offset, bounds[0]), bounds[1])
