"""Serves Subscribe with ``reverse``: sends messages from a start offset back to the oldest.

JetStream delivers forwards only. So the partition is read in chunks from the end, and each chunk is sent in
reverse order. If a chunk has more bytes or messages than expected, its oldest messages are dropped and read
again as the next chunk. So a call never holds much more than a chunk. Where most messages are deleted, as by
compaction, a chunk has more offsets.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope._pb import api_pb2
from liftenvelope.gateway._partitions.feed import DeliveryFeed, sequences_of
from liftenvelope.gateway._readers.reads import may_send
from liftenvelope.jetstream.counting import is_stored
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._partitions.feed import PartitionDelivery
    from liftenvelope.gateway._partitions.storage import PartitionState
    from liftenvelope.gateway._readers.reads import Read
    from liftenvelope.rpc.server import ServerCall

__all__ = ["read_backwards"]

#: Size of a chunk that is read forwards and sent backwards, in bytes, and its most messages.
_CHUNK_BYTES: Final = 1 << 20
_CHUNK: Final = 1_000
#: Most offsets of a chunk, and of one in relation to the chunk before. They bound what is read and dropped
#: where messages are dense again.
_WIDEST: Final = 100_000
_GROWTH: Final = 8


async def read_backwards(
    core: Core,
    call: ServerCall,
    request: api_pb2.SubscribeRequest,
    record: StreamRecord,
    read: Read,
    confirm: Callable[[], Awaitable[None]],
) -> None:
    """Send messages from the start of a request down to its stop, or to the oldest message.

    The call always ends with an error. After the last message it is UNKNOWN, "EOF", as in Liftbridge.

    Args:
        core: The gateway's parts.
        call: The call to answer.
        request: The request of the client.
        record: Record of the stream.
        read: The subscription; the read stops when it is ended.
        confirm: Sends the first, empty message, which confirms the subscription.

    Raises:
        RpcError: UNKNOWN, "EOF": all messages were sent. INTERNAL: the partition is empty. INVALID_ARGUMENT:
            the start position is a time. Other statuses: the subscription was ended with them.
    """
    stream = record.stream_of(request.partition)
    state = await core.storage.state(stream)
    if state.is_empty:
        raise RpcError(StatusCode.INTERNAL, "segment not found")
    start, stop = _start(request, state), _stop(request, state)
    await confirm()
    framer = _native.gate.MessageFramer(request.stream, request.partition)
    size = min(max(_CHUNK_BYTES // max(state.bytes // state.messages, 1), 1), _CHUNK)
    while start >= stop and not read.ended:
        low = max(start - size + 1, stop)
        low, messages = await _range(core, stream, low, start, read)
        held = sum(map(_size, messages))
        # The next messages are expected to be as large and as dense as these.
        offsets = start - low + 1
        fitting = min(_CHUNK_BYTES * offsets // max(held, 1), _CHUNK * offsets // max(len(messages), 1))
        size = min(max(fitting, 1), max(size, _CHUNK) * _GROWTH, _WIDEST)
        if await may_send(core, read):
            await call.send_framed(b"".join(framer.frame([m], 0, -1) for m in reversed(messages)))
        start = low - 1
    if read.error is not None:
        raise read.error
    raise RpcError(StatusCode.UNKNOWN, "EOF")


def _start(request: api_pb2.SubscribeRequest, state: PartitionState) -> int:
    match request.startPosition:
        case api_pb2.OFFSET:
            return min(max(request.startOffset, 0), state.newest)
        case api_pb2.EARLIEST:
            return state.oldest
        case api_pb2.NEW_ONLY | api_pb2.LATEST:
            return state.newest
        case _:
            text = "startPosition must be OFFSET, EARLIEST or LATEST for a reverse read"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)


def _stop(request: api_pb2.SubscribeRequest, state: PartitionState) -> int:
    # Liftbridge ignores a stop above the start. Clients use such a stop to find out whether a server can read
    # backwards. Liftbridge refuses a stop below the start; here it is the lowest offset that is sent.
    if request.stopPosition == api_pb2.STOP_OFFSET and request.stopOffset <= _start(request, state):
        return max(request.stopOffset, state.oldest)
    return state.oldest


def _size(delivery: PartitionDelivery) -> int:
    return len(delivery[2] or b"") + len(delivery[3])


async def _range(
    core: Core, stream: str, low: int, high: int, read: Read
) -> tuple[int, deque[PartitionDelivery]]:
    """Return the messages from an offset to offset ``high`` that still exist, in ascending order.

    The offset comes with them. It is ``low``, or a higher one if the messages are more than a chunk.
    """
    feed = DeliveryFeed(core.read_js, stream, low + 1)
    read.feed = feed
    found: deque[PartitionDelivery] = deque()
    held = 0
    # This framer only parses sequences and pending counts; its frames are discarded.
    framer = _native.gate.MessageFramer("", 0)
    try:
        await feed.open()
        framer.pending = feed.pending
        while framer.sequence <= high and not read.ended:
            if not framer.pending:
                if not await is_stored(core.js.api, stream, max(framer.sequence, low) + 1, high + 1):
                    break
                feed.replace_consumer()
            messages = await feed.take()
            for message in messages:
                framer.frame([message], high + 2, -1)
                if framer.sequence <= high + 1:
                    found.append(message)
                    held += _size(message)
                while len(found) > 1 and (held > _CHUNK_BYTES or len(found) > _CHUNK):
                    held -= _size(found.popleft())
                    low = sequences_of([found[0]])[0] - 1
            if not messages:
                framer.pending = feed.pending
    finally:
        await feed.close()
    return low, found
