"""Bulk publishing: takes messages from an iterable, sends them, and collects their acks.

Two counters bound what is in flight. ``_taken`` counts messages taken from the iterable, ``_settled`` those
with an outcome. ``_taken - _settled`` never exceeds ``max_in_flight``. In a loop over the acks ``_delivered``
takes the place of ``_settled``, so a slow loop slows the sending. The publish is over when no more messages
will be taken and ``_settled == _taken``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from liftenvelope._checks import as_bytes, as_choice, as_count, as_flag
from liftenvelope._deadlines import Deadline
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.client._sending.in_flight import Entry, Outcome
from liftenvelope.client._sending.lane import Lane
from liftenvelope.client._sending.publish_stream import MAX_WAITING_BYTES, PublishStreams
from liftenvelope.client.core import check_partition
from liftenvelope.client.failures import no_such_partition
from liftenvelope.client.publish_checks import check_headers, check_size
from liftenvelope.client.publish_codec import publish_request
from liftenvelope.envelope import Ack, AckPolicy, Message
from liftenvelope.errors import (
    LiftEnvelopeError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.partition import KeyPartitioner, Partitioner

if TYPE_CHECKING:
    from typing_extensions import Buffer


__all__ = ["Item", "Messages", "OutgoingMessage", "Plan", "PublishMany"]

#: Messages prepared in one go before other tasks of the event loop run.
_AT_ONCE: Final = 256
#: Seconds within which the messages taken share a deadline.
_SHARED: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """Message for ``publish_many`` with more than a key and a value.

    Attributes:
        value: Payload, any bytes-like.
        key: Key, any bytes-like.
        headers: Names to bytes-like values.
        partition: Number of the partition; None for the partition of the call, or else of its partitioner.
        expected_offset: Required offset, on a stream with optimistic concurrency; -1 for any.
    """

    value: Buffer
    key: Buffer | None = None
    headers: Mapping[str, Buffer] | None = None
    partition: int | None = None
    expected_offset: int = -1


#: Item of ``publish_many``: a value, a key and a value, or a message with headers and the rest.
Item: TypeAlias = "Buffer | tuple[Buffer | None, Buffer] | OutgoingMessage | Message"
Messages: TypeAlias = "Iterable[Item] | AsyncIterable[Item]"
#: Messages of one partition by their deadline, in the order in which they were taken.
_Batches: TypeAlias = dict[Deadline, list[Entry]]
#: Called at the end of a bulk publish: number of acks, failures by index, error of the whole publish.
OnEnd: TypeAlias = Callable[[int, Mapping[int, Exception], Exception | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Arguments of one ``publish_many``, checked."""

    stream: str
    partition: int | None
    partitioner: Partitioner
    ack_policy: AckPolicy
    timeout: float
    retry_unacked: bool
    max_in_flight: int
    on_error: Literal["raise", "collect"]

    def __post_init__(self) -> None:
        if self.ack_policy is AckPolicy.NONE:
            text = (
                "ack_policy must be LEADER or ALL, got NONE: publish_many waits for acks, use publish instead"
            )
            raise UsageError(text)
        as_choice("on_error", self.on_error, ("raise", "collect"))
        if self.partition is not None:
            check_partition(self.partition)
        as_count("max_in_flight", self.max_in_flight)
        as_flag("retry_unacked", self.retry_unacked)


def _parts(item: Any) -> tuple[bytes | None, bytes, Mapping[str, Buffer] | None, int | None, int]:
    """Return key, value, headers, partition (None if not given) and expected offset of an item."""
    key, value, headers, partition, expected = None, item, None, None, -1
    if type(item) is tuple:
        if len(item) != 2:
            raise UsageError(f"a tuple must be (key, value), got one of {len(item)} items: {item!r}")
        key, value = item
    elif isinstance(item, OutgoingMessage):
        key, value, headers = item.key, item.value, item.headers
        partition, expected = item.partition, item.expected_offset
    elif isinstance(item, Message):
        key, value, headers = item.key, item.value, item.headers
    check_headers(headers)
    return (
        (None if key is None else as_bytes("key", key)),
        as_bytes("value", value),
        headers,
        partition,
        expected,
    )


class PublishMany:
    """Bulk publish, made by :meth:`Client.publish_many`. Await it or iterate over it.

    ``await`` sends all messages and returns the :class:`PublishSummary`. ``async for index, ack in ...``
    yields the acks in the order of the input and continues to send meanwhile; a slow loop slows the sending.
    Nothing is sent before ``await`` or ``async for`` begins. Leaving the loop early leaves the rest unsent;
    :meth:`aclose` then gives up the messages in flight.

    Attributes:
        stream: The stream that the messages are for.
        retry: Whether messages without an ack may be sent again.
        max_request_bytes: Largest request that is sent.
        on_end: Called when the publish ends, perhaps more than once, with the number of acks, the failures by
            index, and the error that ends the publish. None, the default, for no call.
    """

    def __init__(self, streams: PublishStreams, messages: Messages, plan: Plan) -> None:
        self.stream = plan.stream
        self.retry = plan.retry_unacked
        self._plan = plan
        self._streams = streams
        self.max_request_bytes = streams.cluster.options.max_request_bytes
        self._feed: AsyncIterator[Item] | None = None
        # Deadline of the messages that were taken last, and the end of the time in which more share it.
        self._deadline, self._shared_until = Deadline(plan.timeout), 0.0
        self._next: Callable[[], tuple[Item, Deadline]] = self._open_source(messages)
        self._puller: asyncio.Task[None] | None = None
        self._buffer: deque[tuple[Item, Deadline]] = deque()
        # Set while the puller waits for room.
        self._is_held = False
        # Counters of messages since the first one. Results are kept only for a loop over the acks.
        self._taken = self._settled = self._delivered = self._acked = 0
        self._results: dict[int, Outcome] | None = None
        self._failed: dict[int, LiftEnvelopeError] = {}
        self._spans: dict[int, list[int]] = {}
        self._partitions = 0
        self._goes_by_key = isinstance(plan.partitioner, KeyPartitioner)
        self._no_more = False
        self._error: BaseException | None = None
        self.on_end: OnEnd | None = None

    def _open_source(self, messages: Messages) -> Callable[[], tuple[Item, Deadline]]:
        """Return a function that returns the next message and its deadline.

        The function raises StopIteration if no message is there now.
        """
        if isinstance(messages, AsyncIterable):
            self._feed = aiter(messages)
            return self._pop
        if isinstance(messages, bytes | bytearray | str | Mapping) or not hasattr(messages, "__iter__"):
            raise UsageTypeError(
                f"messages must be an iterable or async iterable of messages, got {type(messages).__name__}"
            )
        source = iter(messages)
        return lambda: (next(source), self._deadline_from_now())

    def _deadline_from_now(self) -> Deadline:
        now = monotonic()
        if now >= self._shared_until:
            timeout = self._plan.timeout
            self._deadline, self._shared_until = Deadline(timeout), now + min(_SHARED, timeout / 10)
        return self._deadline

    def _pop(self) -> tuple[Item, Deadline]:
        if not self._buffer:
            raise StopIteration
        return self._buffer.popleft()

    # Public methods

    @property
    def summary(self) -> PublishSummary:
        """Summary of the messages that have an outcome by now."""
        offsets = {number: (first, last) for number, (first, last) in sorted(self._spans.items())}
        return PublishSummary(self._acked, dict(sorted(self._failed.items())), offsets)

    def __await__(self) -> Generator[Any, None, PublishSummary]:
        return self._finish().__await__()

    def __aiter__(self) -> Self:
        if self._results is None:
            self._results, self._delivered = {}, self._taken
        return self

    async def __anext__(self) -> tuple[int, Ack]:
        if self._results is None:
            self._results, self._delivered = {}, self._taken
        while True:
            while (outcome := self._results.pop(self._delivered, None)) is not None:
                self._delivered += 1
                if isinstance(outcome, Ack):
                    return self._delivered - 1, outcome
            if self._is_over:
                await self._end()
                self._raise()
                raise StopAsyncIteration
            await self._work()

    async def aclose(self) -> None:
        """Take no more messages and give up those in flight, which may be stored. Closing twice is fine."""
        self._take_no_more()
        self._streams.drop(self)
        self._settled = self._taken
        self._buffer.clear()
        if self._results is not None:
            self._results.clear()
        await self._end()

    def stop(self) -> None:
        """Take no more messages: the client is closed before the end of the iterable."""
        if not self._no_more:
            self._stop(
                TransportError(f"stream {self.stream!r}: the client was closed; not all was published")
            )
        if self._puller is not None:
            self._puller.cancel()
        self._streams.wake()

    # Sending

    async def _finish(self) -> PublishSummary:
        self._results = None
        while not self._is_over:
            await self._work()
        await self._end()
        self._raise()
        return self.summary

    @property
    def _is_over(self) -> bool:
        return self._no_more and not self._buffer and self._settled == self._taken

    @property
    def _room(self) -> int:
        """Number of messages that may still be taken. Acks that a loop has not fetched count as in flight."""
        done = self._settled if self._results is None else self._delivered
        return self._plan.max_in_flight - (self._taken - done)

    @property
    def _has_room(self) -> bool:
        """True if one more message may be taken from an async iterator."""
        return self._room > len(self._buffer)

    async def _work(self) -> None:
        """Send as many messages as there is room for, then wait for progress."""
        self._streams.cluster.check_loop()
        try:
            if not self._partitions:
                await self._begin()
            if await self._send(min(self._room, _AT_ONCE)) == _AT_ONCE:
                await asyncio.sleep(0)
            elif not self._is_over and not self._has_result:
                if self._is_held and self._has_room:  # the loop over the acks has made room
                    self._is_held = False
                    self._streams.wake()
                await self._until_progress()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except Exception as exc:
            self._tell(exc)
            raise

    async def _until_progress(self) -> None:
        """Wait for an ack, for room in the transport, or for a message of an async iterator.

        Messages that fail before they are sent are settled without a wakeup. If all messages taken have
        failed like that, nothing is in flight that could end the wait, and there is room for more messages.
        """
        feeds = self._feed is not None and not self._buffer
        if self._settled < self._taken or self._streams.is_full or feeds:
            await self._streams.progress()
        else:
            await asyncio.sleep(0)

    @property
    def _has_result(self) -> bool:
        return self._results is not None and self._delivered in self._results

    async def _begin(self) -> None:
        info = await self._streams.partition_info(
            self.stream, Deadline(self._plan.timeout), self._plan.partition
        )
        self._partitions = len(info.partitions)
        if self._feed is not None:
            self._puller = asyncio.create_task(self._pull(self._feed))
            self._streams.runs.add(self)

    async def _pull(self, feed: AsyncIterator[Item]) -> None:
        """Take messages from an async iterator while there is room.

        This is a task of its own, so that neither a slow iterator delays acks nor slow acks the iterator.
        """
        while not self._no_more:
            if not self._has_room:
                self._is_held = True
                await self._streams.progress()
                continue
            try:
                item = await anext(feed)
            except StopAsyncIteration:
                self._no_more = True
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._stop(exc)  # of something that the iterator has awaited
            except Exception as exc:  # noqa: BLE001 - the caller's own: raised once all messages are settled
                self._stop(exc)
            else:
                self._buffer.append((item, self._deadline_from_now()))
            self._streams.wake()

    async def _send(self, limit: int) -> int:
        """Send up to ``limit`` messages; return the number of messages taken from the iterable."""
        if self._streams.is_full:
            return 0
        first = self._taken
        unpinned: list[Coroutine[None, None, None]] = []
        for partition, batches in self._make_ready(limit).items():
            lane = self._streams.pinned(self.stream, partition)
            if lane is None:
                unpinned.append(self._submit_unpinned(partition, batches))
            else:
                self._submit(lane, batches)
        if unpinned:
            # All at once: a broker that does not answer must not use up the time of other partitions.
            await asyncio.gather(*unpinned)
        return self._taken - first

    async def _submit_unpinned(self, partition: int, batches: _Batches) -> None:
        try:
            lane = await self._lane(partition, next(iter(batches)))
        except Exception as exc:  # noqa: BLE001 - ours, or that of a function of the user's
            self._stop(exc)  # the next message would fail in the same way
            for entries in batches.values():
                for entry in entries:
                    self._keep(entry.index, exc)
        else:
            self._submit(lane, batches)

    def _submit(self, lane: Lane, batches: _Batches) -> None:
        for deadline, entries in batches.items():
            self._streams.submit(lane, entries, deadline.left)

    def _make_ready(self, limit: int) -> dict[int, _Batches]:
        """Take up to ``limit`` messages and return entries for those that can be sent, by partition."""
        found: dict[int, _Batches] = {}
        last, size = self._taken + limit, 0
        while self._taken < last and size < MAX_WAITING_BYTES:
            try:
                item, deadline = self._next()
            except StopIteration:
                if self._feed is None:
                    self._take_no_more()
                break
            except Exception as exc:  # noqa: BLE001 - the iterable's: raised once all messages are settled
                self._stop(exc)
                break
            index = self._taken
            self._taken = index + 1
            try:
                entry = self._entry(index, item)
            except Exception as exc:  # noqa: BLE001 - ours, or the partitioner's: raised or collected
                exc.add_note(f"message {index} of publish_many")
                self._keep(index, exc)
                continue
            found.setdefault(entry.partition, {}).setdefault(deadline, []).append(entry)
            size += len(entry.request)
        return found

    def _entry(self, index: int, item: Item) -> Entry:
        """Encode a message and return its entry."""
        plan, partition, value, expected = self._plan, self._plan.partition, item, -1
        key: bytes | None = None
        headers: Mapping[str, Buffer] | None = None
        if type(value) is not bytes:
            key, value, headers, given, expected = _parts(item)
            if given is not None:
                partition = self._existing(given)
        if partition is None and key is None and self._goes_by_key:
            partition = 0  # the partition of an empty key
        elif partition is None:
            partition = plan.partitioner.partition(plan.stream, key, value, self._partitions)
        correlation_id = next(self._streams.ids)
        request = publish_request(
            plan.stream,
            value,
            key=key,
            headers=headers,
            partition=partition,
            correlation_id=correlation_id,
            ack_policy=plan.ack_policy,
            expected_offset=expected,
        )
        if len(request) > self.max_request_bytes:
            check_size(request, self.max_request_bytes)
        return Entry(correlation_id, request, partition, self, index)

    def _existing(self, partition: int) -> int:
        if check_partition(partition) >= self._partitions:
            raise no_such_partition(self.stream, partition, self._partitions)
        return partition

    async def _lane(self, partition: int, deadline: Deadline) -> Lane:
        info = await self._streams.partition_info(self.stream, deadline, partition)
        return await self._streams.pin(info, partition, deadline)

    # Outcomes

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """Take the outcome of a message."""
        if type(outcome) is not Ack:
            self._keep(entry.index, outcome)
            return
        self._settled += 1
        self._acked += 1
        offset, span = outcome.offset, self._spans.get(entry.partition)
        if span is None:
            self._spans[entry.partition] = [offset, offset]
        elif offset > span[1]:
            span[1] = offset
        elif offset < span[0]:
            span[0] = offset
        if self._results is not None:
            self._results[entry.index] = outcome

    def _keep(self, index: int, error: Any) -> None:
        """Record the failure of a message."""
        self._settled += 1
        if self._results is not None:
            self._results[index] = error
        if not isinstance(error, LiftEnvelopeError):
            self._stop(error)
            return
        self._failed[index] = error
        if self._plan.on_error == "raise":
            self._take_no_more()

    def _stop(self, error: BaseException) -> None:
        """Take no more messages because of an error, which is raised when all messages are settled."""
        self._take_no_more()
        self._error = self._error or error

    def _take_no_more(self) -> None:
        """Take no more messages from the iterable. Messages taken already are sent."""
        self._no_more = True
        self._next = self._pop

    def _raise(self) -> None:
        """Raise the error that ends the publish, if there is one."""
        error = self._final_error()
        if error is None:
            return
        if isinstance(error, LiftEnvelopeError):
            error.summary = self.summary
        raise error

    def _final_error(self) -> BaseException | None:
        if self._error is None and self._failed and self._plan.on_error == "raise":
            return self._failed[min(self._failed)]
        return self._error

    def _tell(self, error: BaseException | None) -> None:
        if self.on_end is not None:
            self.on_end(self._acked, self._failed, error if isinstance(error, Exception) else None)

    async def _end(self) -> None:
        """End the puller task."""
        puller, self._puller = self._puller, None
        self._streams.runs.discard(self)
        if puller is not None:
            puller.cancel()
            await asyncio.gather(puller, return_exceptions=True)
        self._tell(self._final_error())
