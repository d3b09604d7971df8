"""Messages that a JetStream stream has now: all up to the newest one, and the start of the last ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import LiftEnvelopeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from liftenvelope.jetstream import Message, Stream

__all__ = ["sequence_of_last", "up_to_newest"]

#: Messages of one request.
_FETCH: Final = 500
#: Seconds until a consumer that had too little is replaced.
_PAUSE: Final = 0.1


async def up_to_newest(
    stream: Stream, start: Mapping[str, Any], subjects: Sequence[str]
) -> AsyncGenerator[Message, None]:
    """Iterate over the messages up to the one that is the newest now.

    A consumer may be on a replica that lags, so only the leader tells that none is left.

    Args:
        stream: The stream.
        start: The part of a consumer's configuration that says where to begin.
        subjects: Only messages on these subjects; empty for all.
    """
    from liftenvelope.jetstream.counting import at_sequence, count_from

    end = (await stream.info()).state.last_seq
    while True:
        consumer = stream.ordered_consumer(filter_subjects=subjects, **start)
        try:
            while batch := await consumer.fetch_no_wait(_FETCH):
                for message in batch:
                    sequence = message.metadata.stream_sequence
                    if sequence < start.get("opt_start_seq", 0):
                        continue  # before 2.11, a replica that lags begins with older ones
                    if sequence <= end:
                        yield message
                    if sequence >= end:
                        return
                    start = at_sequence(sequence + 1)
                if batch.error is not None:
                    raise batch.error
        finally:  # the stream may allow no other consumer beside this one
            with suppress(LiftEnvelopeError):  # the outcome of the read counts
                await consumer.close()
        if not await count_from(stream, start, subjects):
            return
        await asyncio.sleep(_PAUSE)


async def sequence_of_last(stream: Stream, count: int, subjects: Sequence[str]) -> int:
    """Return the sequence to start at, so that the last messages are delivered.

    Messages may be deleted from between, and with subjects only some match, so sequences alone do not tell.
    A consumer says how many messages it has from a sequence on, so the sequence is found by bisection.

    Args:
        stream: The stream.
        count: Number of messages.
        subjects: Only messages on these subjects; empty for all.
    """
    from liftenvelope.jetstream.counting import at_sequence, count_from

    state = (await stream.info()).state
    first, end = max(state.first_seq, 1), state.last_seq + 1
    if not subjects and not state.num_deleted:
        return max(end - count, first)
    # From `low` on there are `count` messages or more, or `low` is the first. From `high` on fewer.
    low, high, width = end, end, count
    while low > first:
        low = max(end - width, first)
        if await count_from(stream, at_sequence(low), subjects) >= count:
            break
        high, width = low, width * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await count_from(stream, at_sequence(middle), subjects) >= count:
            low = middle
        else:
            high = middle
    return low
