"""Reads a few messages of a stream for the page, within bounds. Nothing is created on the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope.errors import MessageNotFoundError, ReadonlyPartitionError, UnsupportedByServerError
from liftenvelope.monitor.messages import Received, from_liftbridge, opened

if TYPE_CHECKING:
    from liftenvelope.client import Client
    from liftenvelope.jetstream import JetStream, StoredMessage, Stream

__all__ = ["JetStreamMessages", "LiftbridgeMessages", "MessagePage", "MessageQuery", "MessageSource"]

#: Messages, bytes and seconds to look through for a key.
_SCAN: Final = 2_000
_SCAN_BYTES: Final = 16 * 1024 * 1024
_SCAN_SECONDS: Final = 5.0
#: Sequences to try for each of the last messages: some may be deleted.
_GAPS: Final = 4
#: Messages and bytes of one direct request.
_BATCH: Final = 100
_BATCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class MessageQuery:
    """Messages to read.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition; 0 for JetStream.
        start: First offset, or first time; None for the last messages.
        key: Only messages with this key; None for all.
        limit: Most messages.
    """

    stream: str
    partition: int = 0
    start: int | datetime | None = None
    key: bytes | None = None
    limit: int = 20


@dataclass(frozen=True, kw_only=True)
class MessagePage:
    """Messages that were found, in order.

    Attributes:
        messages: The messages.
        next: Offset to go on at; None after the newest message.
        scanned: Number of messages that were looked at.
    """

    messages: Sequence[Received]
    next: int | None
    scanned: int


class MessageSource(Protocol):
    """Reads messages for the page."""

    async def read(self, query: MessageQuery) -> MessagePage:
        """Return the messages of a query.

        Raises:
            LiftEnvelopeError: The stream can't be read.
        """
        ...


class JetStreamMessages:
    """Reads messages of JetStream streams.

    A search reads batches, or single messages without ``allow_direct`` and from servers before 2.11.

    Args:
        js: JetStream.
    """

    def __init__(self, js: JetStream) -> None:
        self._js = js

    async def read(self, query: MessageQuery) -> MessagePage:
        """Return the messages of a query.

        Raises:
            StreamNotFoundError: The stream does not exist.
            JetStreamError, CallTimeoutError, TransportError: The stream can't be read.
        """
        stream = await self._js.stream(query.stream)
        state = stream.cached_info.state
        if query.start is None and query.key is None:
            return await _last(stream, query.limit)
        if query.start is None:
            first = max(state.last_seq - _SCAN, 0) + 1
        elif isinstance(query.start, int):
            first = max(query.start, 0) + 1
        else:
            first = await _sequence_at(stream, query.start)
        return await _collect(_stored(stream, first), query, state.last_seq - 1)


async def _last(stream: Stream, limit: int) -> MessagePage:
    """Return the last messages, read backwards, so that large ones do not keep the newest from being read."""
    state = stream.cached_info.state
    found: list[Received] = []
    size = 0
    oldest = max(state.first_seq, state.last_seq + 1 - limit * _GAPS, 1)
    for sequence in range(state.last_seq, oldest - 1, -1):
        try:
            message = _opened(await stream.get_message(sequence, direct=False))
        except MessageNotFoundError:
            continue
        found.append(message)
        size += len(message.payload)
        if len(found) >= limit or size >= _SCAN_BYTES:
            break
    return MessagePage(messages=found[::-1], next=None, scanned=len(found))


def _opened(message: StoredMessage) -> Received:
    return opened(
        stream=message.stream,
        sequence=message.sequence,
        timestamp_ns=message.timestamp_ns,
        subject=message.subject,
        headers=message.headers.pairs,
        data=message.data,
    )


async def _stored(stream: Stream, first: int) -> AsyncGenerator[Received]:
    in_batches = stream.cached_info.config.allow_direct
    while True:
        found: list[StoredMessage] = []
        if in_batches:
            try:
                batch = stream.get_messages(_BATCH, sequence=first, max_bytes=_BATCH_BYTES)
                found = [message async for message in batch]
            except (MessageNotFoundError, UnsupportedByServerError):
                # Servers before 2.11 have no batches, and no message for a sequence that was deleted.
                in_batches = False
        if not found:
            try:
                found = [await stream.get_message(first, next_by_subject=">")]
            except MessageNotFoundError:
                return
        for message in found:
            yield _opened(message)
        first = found[-1].sequence + 1


async def _sequence_at(stream: Stream, moment: datetime) -> int:
    """Return the sequence of the first message from a time on, by bisection."""
    state = stream.cached_info.state
    low, high = max(state.first_seq, 1), state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        try:
            message = await stream.get_message(middle, next_by_subject=">", direct=False)
        except MessageNotFoundError:
            high = middle
            continue
        if message.time < moment:
            low = message.sequence + 1
        else:
            high = middle
    return low


class LiftbridgeMessages:
    """Reads messages of Liftbridge or a gateway.

    Args:
        client: An open client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, query: MessageQuery) -> MessagePage:
        """Return the messages of a query.

        Raises:
            ServerError, CallTimeoutError, TransportError: The partition can't be read.
        """
        found = await self._client.fetch_partition_metadata(query.stream, query.partition)
        newest = found.high_watermark
        start = query.start
        if start is None:
            start = max(newest + 1 - (_SCAN if query.key is not None else query.limit), 0)
        if newest < 0 or (isinstance(start, int) and start > newest):
            return MessagePage(messages=(), next=None, scanned=0)
        return await _collect(self._stored(query, start), query, newest)

    async def _stored(self, query: MessageQuery, start: int | datetime) -> AsyncGenerator[Received]:
        reading = self._client.subscribe(query.stream, partition=query.partition, start=start, stop="latest")
        try:
            async with reading as messages:
                async for message in messages:
                    yield from_liftbridge(message)
        except ReadonlyPartitionError:  # the end of a partition that refuses messages
            return


async def _collect(messages: AsyncGenerator[Received], query: MessageQuery, newest: int) -> MessagePage:
    """Take messages until there are enough, or enough were looked at."""
    kept: list[Received] = []
    scanned, size, offset = 0, 0, -1
    keeps_last = query.start is None
    ends = asyncio.get_running_loop().time() + _SCAN_SECONDS
    async with aclosing(messages) as found:
        async for message in found:
            scanned, size, offset = scanned + 1, size + len(message.payload), message.offset
            if query.key is None or message.key == query.key:
                kept.append(message)
                if keeps_last:
                    del kept[: -query.limit]
            is_enough = len(kept) >= query.limit and not keeps_last
            is_over = scanned >= _SCAN or size >= _SCAN_BYTES or asyncio.get_running_loop().time() >= ends
            if offset >= newest or is_enough or is_over:
                break
    is_last = offset < 0 or offset >= newest
    return MessagePage(messages=kept, next=None if is_last else offset + 1, scanned=scanned)
