"""State of the messages on one PublishAsync stream: waiting, sent, to be sent again, or done.

Sans-io. The states of a message, and the events that change them::

    WAITING --take--> SENT --answer, deadline, loss--> DONE
       |               |
       |               +--the stream is lost, and a retry is allowed--> AGAIN --take--> SENT
       +--deadline, given up--> DONE

A server acks a message by its correlation id, so ids are unique among the pending messages of a stream.
Messages that are sent again keep the order in which they were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

from liftenvelope._deadlines import ack_timeout
from liftenvelope._wire import RecentIds
from liftenvelope.client.failures import STREAM_ACK_CAUSES, call_error, is_denial, publish_async_error
from liftenvelope.client.publish_codec import Response
from liftenvelope.envelope import Ack
from liftenvelope.errors import (
    AckTimeoutError,
    PermissionDeniedError,
    TransportError,
    publish_error,
)
from liftenvelope.rpc.status import UNANSWERED_IS_NOT_STORED, CallNotProcessedError, RpcError, StatusCode

__all__ = ["Ending", "Entry", "InFlight", "Outcome", "Sink", "ending_of"]

#: An ack, or an error: ours, or that of a function of the user's.
Outcome: TypeAlias = Ack | Exception

#: States of an entry.
WAITING: Final = 0
SENT: Final = 1
AGAIN: Final = 2
DONE: Final = 3
#: Ids of sent messages that were given up, to remember per stream.
_GIVEN_UP: Final = 10_000


class Sink(Protocol):
    """Receives the outcomes of messages.

    Attributes:
        stream: The stream that the messages are for.
        retry: Whether a message may be sent again although it may be stored already.
    """

    stream: str
    retry: bool

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """Take the outcome of a message."""
        ...


class Entry:
    """A message without an outcome.

    Attributes:
        correlation_id: Id that the server repeats in the ack.
        request: Encoded PublishRequest; empty once the message has an outcome.
        partition: Number of the partition.
        sink: Receiver of the outcome.
        index: Number of the message at its sink.
        bucket: Bucket of the messages with the same deadline, by correlation id.
        serial: Ascending number per client; messages added together share one.
        flight: The :class:`InFlight` that holds the message.
        state: WAITING, SENT, AGAIN or DONE.
    """

    __slots__ = (
        "bucket",
        "correlation_id",
        "flight",
        "index",
        "partition",
        "request",
        "serial",
        "sink",
        "state",
    )

    # Set by InFlight.add.
    bucket: dict[str, Entry]
    flight: InFlight
    serial: int

    def __init__(self, correlation_id: str, request: bytes, partition: int, sink: Sink, index: int) -> None:
        self.correlation_id = correlation_id
        self.request = request
        self.partition = partition
        self.sink = sink
        self.index = index
        self.state = WAITING

    @property
    def about(self) -> str:
        """Stream and partition, as error texts name them."""
        return f"{self.sink.stream}[{self.partition}]"

    def timed_out(self) -> AckTimeoutError:
        """Return the error for a deadline that has passed."""
        what = f"the message on {self.about}"
        return ack_timeout(what, self.correlation_id, sent=self.state != WAITING, causes=STREAM_ACK_CAUSES)

    def denied(self, why: PermissionDeniedError) -> PermissionDeniedError:
        """Return the error for a message whose stream refused another message."""
        if self.state == WAITING:
            return PermissionDeniedError(why.code, f"{self.about}: not sent: another message was refused")
        return PermissionDeniedError(why.code, f"{self.about}: {why.description}", sent=True)

    def lost(self, why: str) -> TransportError:
        """Return the error for a stream that ended before the ack came."""
        if self.state == WAITING:
            return TransportError(f"{self.about}: {why}; the message was not sent", 0, False)
        return TransportError(f"{self.about}: {why}; the message may be stored", 1, True)

    def failed(self, why: Exception) -> Exception:
        """Return the error for a failure on this side: the failure itself if the message was not sent."""
        if self.state == WAITING:
            return why
        error = self.lost(f"the client could not go on: {why!r}")
        error.__cause__ = why
        return error


class Ending(Enum):
    """Consequence of the end of a stream for the messages on it."""

    #: The server has stored none of the unanswered messages.
    UNSEEN = auto()
    #: The broker or the connection is gone. Messages that were sent may be stored.
    LOST = auto()
    #: The server ended the stream because of one message. Sending all again might end the next stream too.
    BROKEN = auto()
    #: The server does not let this client publish. Nothing is stored, and a retry would be refused too.
    REFUSED = auto()


_REFUSALS: Final = frozenset({StatusCode.UNAUTHENTICATED, StatusCode.UNIMPLEMENTED})


def ending_of(error: RpcError | TransportError | None) -> Ending:
    """Classify the end of a stream. None stands for status OK, with which a stopping server ends streams."""
    if isinstance(error, CallNotProcessedError):
        return Ending.UNSEEN
    if isinstance(error, RpcError) and error.description == UNANSWERED_IS_NOT_STORED:
        return Ending.UNSEEN  # the server saw messages, but has answered all of those
    if error is None or isinstance(error, TransportError):
        return Ending.LOST
    if error.code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED):
        return Ending.LOST
    return Ending.REFUSED if error.code in _REFUSALS or is_denial(error) else Ending.BROKEN


class InFlight:
    """The pending messages of one stream, in the order in which they were given."""

    def __init__(self) -> None:
        #: Pending messages by correlation id, the waiting ones last.
        self.pending: dict[str, Entry] = {}
        #: Bytes of the requests that wait to be sent.
        self.waiting_bytes = 0
        #: Ids of messages that were sent and given up: the server may still ack them while the call is open.
        self.given_up = RecentIds(_GIVEN_UP)
        self._waiting: deque[Entry] = deque()

    @property
    def has_waiting(self) -> bool:
        """True if a message waits to be sent."""
        return bool(self._waiting)

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """Streams and partitions of the pending messages."""
        return list(dict.fromkeys((entry.sink.stream, entry.partition) for entry in self.pending.values()))

    def add(self, entries: Sequence[Entry], bucket: dict[str, Entry], serial: int) -> None:
        """Add messages with a common deadline. Their ids must differ from all pending ones."""
        by_id = {entry.correlation_id: entry for entry in entries}
        self.pending.update(by_id)
        bucket.update(by_id)
        self._waiting.extend(entries)
        for entry in entries:
            entry.flight, entry.bucket, entry.serial = self, bucket, serial
            self.waiting_bytes += len(entry.request)

    def take(self, max_bytes: int) -> list[bytes]:
        """Return the next requests, marked as sent: one if any waits, and more up to ``max_bytes``."""
        waiting, taken, size = self._waiting, list[bytes](), 0
        while waiting and size < max_bytes:
            entry = waiting.popleft()
            if entry.state == DONE:
                continue
            taken.append(entry.request)
            size += len(entry.request)
            entry.state = SENT
        self.waiting_bytes -= size
        return taken

    def feed(self, responses: Iterable[Response]) -> list[tuple[Entry, Outcome]]:
        """Process answers of the server; return the outcomes that they settle.

        An answer without a pending message is ignored: it comes late, or the message was given up. An ack of
        another stream that records the same subject settles nothing.
        """
        pending, settled = self.pending, list[tuple[Entry, Outcome]]()
        for correlation_id, ack, code, text in responses:
            entry = pending.get(correlation_id)
            if entry is None:
                continue
            outcome: Outcome
            if code >= 0:  # an answer with an error carries an empty ack too
                outcome = publish_async_error(code, text, entry.about, correlation_id)
            elif ack is None or ack.stream != entry.sink.stream:
                continue
            else:
                outcome = publish_error(ack) if ack.error else ack
            # Same as _finish, inlined because it runs for every message.
            if entry.state == SENT:
                entry.state, entry.request = DONE, b""
                bucket = entry.bucket
                del pending[correlation_id], bucket[correlation_id]
                if not bucket:
                    bucket.clear()  # frees the dict's memory, which it would keep until the deadline
            else:
                self._finish(entry)
            settled.append((entry, outcome))
        return settled

    def drop(self, entry: Entry) -> bool:
        """Give up a message; return False if it was settled before. A message that was sent may be stored."""
        if entry.state == DONE:
            return False
        if entry.state == SENT:
            self.given_up.add(entry.correlation_id)
        self._finish(entry)
        return True

    def deny(self, stream: str, why: PermissionDeniedError) -> list[tuple[Entry, Outcome]]:
        """Give up the unsent messages for a stream; return the outcomes."""
        entries = [
            entry for entry in self.pending.values() if entry.state != SENT and entry.sink.stream == stream
        ]
        return self._give_up(entries, lambda entry: entry.denied(why))

    def abandon(self, why: str) -> list[tuple[Entry, Outcome]]:
        """Give up every message; return the outcomes, all of them as lost."""
        return self._give_up(list(self.pending.values()), lambda entry: entry.lost(why))

    def fail(self, why: Exception) -> list[tuple[Entry, Outcome]]:
        """Give up every message because of a failure on this side; return the outcomes."""
        return self._give_up(list(self.pending.values()), lambda entry: entry.failed(why))

    def _give_up(
        self, entries: list[Entry], outcome: Callable[[Entry], Outcome]
    ) -> list[tuple[Entry, Outcome]]:
        settled = [(entry, outcome(entry)) for entry in entries]
        for entry in entries:
            self._finish(entry)
        return settled

    def ended(self, error: RpcError | TransportError | None) -> list[tuple[Entry, Outcome]]:
        """Record the end of the stream, with an error or with OK (None); return the outcomes that it settles.

        The other messages wait to be taken again, in the same order.
        """
        ending = ending_of(error)
        settled: list[tuple[Entry, Outcome]] = []
        kept: list[Entry] = []
        for entry in list(self.pending.values()):
            outcome = _outcome(entry, ending, error)
            if outcome is None:
                kept.append(entry)
            else:
                self._finish(entry)
                settled.append((entry, outcome))
        self._wait_again(kept, unseen=ending is Ending.UNSEEN)
        self.given_up = RecentIds(_GIVEN_UP)  # the acks of an ended call go to nobody
        return settled

    def _wait_again(self, entries: list[Entry], *, unseen: bool) -> None:
        for entry in entries:
            if entry.state == SENT:
                # The server ignored this attempt. A message with retry may have been sent by an earlier one.
                entry.state = WAITING if unseen and not entry.sink.retry else AGAIN
        self._waiting = deque(entries)
        self.waiting_bytes = sum(len(entry.request) for entry in entries)

    def _finish(self, entry: Entry) -> None:
        if entry.state != SENT:
            self.waiting_bytes -= len(entry.request)
        entry.state, entry.request = DONE, b""
        del self.pending[entry.correlation_id]
        del entry.bucket[entry.correlation_id]
        if not entry.bucket:
            entry.bucket.clear()
        while self._waiting and self._waiting[0].state == DONE:
            self._waiting.popleft()


def _outcome(entry: Entry, ending: Ending, error: RpcError | TransportError | None) -> Outcome | None:
    """Return the outcome that the end of its stream gives a message; None if it is sent later or again."""
    if ending is Ending.REFUSED:
        assert error is not None  # only an error refuses
        return call_error("PublishAsync", error, entry.about)
    if entry.state != SENT or ending is Ending.UNSEEN:
        return None
    if ending is Ending.LOST and entry.sink.retry:
        return None
    return entry.lost(f"the publish stream ended: {error or 'the server stopped'}")
