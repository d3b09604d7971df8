"""Lookup of start offsets: asks a partition's leader without reading messages. Sans-io.

The server refuses a subscription whose stop lies before its start, and the refusal names the offset that the
start was resolved to. A subscription with the stop -2 is therefore a lookup. Two server bugs make lookups
necessary:

- If the newest segment of a log is new and still empty, the server resolves every start by time to the end of
  the log (it takes the end of file in its lookup for "later than everything"). A read would silently skip
  messages. In that case the offset is found by a binary search that reads single messages.
- If retention has removed all messages of a partition, the partition has a newest offset and no message. A
  read up to that offset would wait for the next message that is published.

A lookup is a generator that yields steps. A shell (:mod:`liftenvelope.client._reading.async_start_lookup`, or
the blocking one in ``bulk``) carries out each step and sends back the answer, or throws the RpcError or
TransportError of the step into the generator. Other errors end the lookup. The shell closes the open
subscription before every Subscribe and Pause, and at the end of the lookup.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from liftenvelope import _native
from liftenvelope._pb import api_pb2
from liftenvelope.client.failures import call_error, is_denial, resolved_start
from liftenvelope.client.partition_read import is_worth_another_look, was_stopped
from liftenvelope.client.positions import offset_after
from liftenvelope.errors import EnvelopeError, ServerProtocolError, TransportError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.envelope import Message

__all__ = [
    "ENDED",
    "Answer",
    "AskLeader",
    "LookupStep",
    "LookupSteps",
    "Pause",
    "Receive",
    "StartLookup",
    "Subscribe",
]

_T = TypeVar("_T")

# Stop offset before every start. Not -1, which servers treat as no stop.
_BEFORE_ALL: Final = -2
#: Attempts to resolve a start. A server that is removing a segment, or has just started, refuses lookups for
#: a moment, and a single attempt may hit a lost connection or an earlier leader.
_RESOLVE_ATTEMPTS: Final = 5
#: Seconds to wait for the first answer to a subscription.
_HANDSHAKE: Final = 2.0
#: Seconds of silence that show that there is no message. The silence must happen ``_SILENCES`` times, with an
#: answered call after each, because a stalled server is silent too.
_SILENCE: Final = 1.0
_SILENCES: Final = 2
#: Text of the UNAVAILABLE that a shell throws when the server ends a subscription with the status OK.
ENDED: Final = "the server ended the subscription and gave no reason"


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe at the partition's leader. The answer is not used.

    Attributes:
        request: The request.
        again: True after a failed attempt: the leader or the connection may have changed.
    """

    request: api_pb2.SubscribeRequest
    again: bool


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive the next message of the subscription.

    Answer: the message, or None after ``seconds`` without one. If the server has ended the subscription with
    OK, the shell throws an RpcError with the code UNAVAILABLE.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class AskLeader:
    """Fetch the state of the partition from its leader, to learn that it responds. The answer is not used."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next attempt. Answer: False if the deadline is over, so that no time is left for it."""

    attempt: int


LookupStep: TypeAlias = Subscribe | Receive | AskLeader | Pause
Answer: TypeAlias = bytes | bool | None
LookupSteps: TypeAlias = Generator[LookupStep, Answer, _T]


class StartLookup:
    """Offset lookups for one partition.

    Args:
        stream: Name of the stream.
        partition: Number of the partition.
    """

    def __init__(self, stream: str, partition: int) -> None:
        self._stream = stream
        self._partition = partition
        self._name = f"{stream}[{partition}]"

    def oldest(self) -> LookupSteps[int | None]:
        """Find the offset of the oldest message: 0 for an empty log, None if the server can't tell."""
        return self.resolve(api_pb2.EARLIEST)

    def at_time(self, time_ns: int, newest: int) -> LookupSteps[int | None]:
        """Find the offset of the first message at or after a time; the newest offset + 1 if there is none.

        The result is None if the server can't tell.

        Args:
            time_ns: Time in ns since 1970.
            newest: Newest offset of the partition.
        """
        found = yield from self.resolve(api_pb2.TIMESTAMP, time_ns)
        if found is None or found <= newest or newest < 0:
            return found
        if (yield from self._times_work(newest)):
            return found
        oldest = yield from self.oldest()
        if oldest is None:
            return None
        return (yield from self._search(time_ns, oldest, newest))

    def is_empty(self, last: int, newest: int) -> LookupSteps[bool]:
        """Find out if no message is left up to an offset, in a partition that sends none.

        Args:
            last: The offset.
            newest: Newest offset of the partition, ``last`` or higher.
        """
        oldest = yield from self.oldest()
        if oldest is None or oldest > last:
            return oldest is not None
        return oldest == 0 and (yield from self.is_emptied(newest))

    def is_emptied(self, newest: int) -> LookupSteps[bool]:
        """Find out if retention has emptied a log that the server reports to begin at 0.

        For an empty log, servers name 0 as the oldest offset, and resolve no times.

        Args:
            newest: Newest offset of the partition, at least 0.
        """
        works = yield from self._times_work(newest)
        if works is not False:
            return False
        return (yield from self.peek(0, 0)) is None

    def resolve(self, position: api_pb2.StartPosition, time_ns: int = 0) -> LookupSteps[int | None]:
        """Find the offset that the server resolves a start to; None if the server does not tell."""
        request = self._request(_BEFORE_ALL)
        request.startPosition, request.startTimestamp = position, time_ns
        for attempt in range(_RESOLVE_ATTEMPTS):
            if attempt and not (yield Pause(attempt)):
                break
            try:
                yield Subscribe(request, attempt > 0)
                if (yield Receive(_HANDSHAKE)) is not None:
                    break  # the server accepts any stop, so it will not name the start
            except RpcError as exc:
                if (found := resolved_start(exc)) is not None:
                    return found
                if is_denial(exc):
                    raise call_error("Subscribe", exc, self._name) from exc
            except TransportError:
                continue
        return None

    def peek(self, offset: int, stop: int) -> LookupSteps[Message | None]:
        """Find the message at an offset, or else the next one up to ``stop``; None if there is none.

        Raises:
            CallTimeoutError, TransportError: The broker gave no clear answer in time.
            ServerProtocolError: The server sent bytes that are not a message.
        """
        request = self._request(stop)
        request.startPosition, request.startOffset = api_pb2.OFFSET, offset
        attempt = 0
        while True:
            try:
                payload = yield from self._first_message(request, again=attempt > 0)
            except (RpcError, TransportError) as exc:
                if was_stopped(exc):
                    return None
                attempt += 1
                if not is_worth_another_look(exc) or not (yield Pause(attempt)):
                    raise call_error("Subscribe", exc, self._name) from exc
            else:
                message = None if payload is None else self._decoded(payload)
                # The server moves a start beyond the high watermark back to it.
                return message if message is not None and message.offset >= offset else None

    def _times_work(self, newest: int) -> LookupSteps[bool | None]:
        """Find out if starts by time are reliable: time 0 must not be resolved to the end of the log.

        The result is None if the server can't tell.
        """
        first = yield from self.resolve(api_pb2.TIMESTAMP, 0)
        return None if first is None else first <= newest

    def _search(self, time_ns: int, low: int, newest: int) -> LookupSteps[int]:
        """Find the first message at or after a time by binary search.

        The messages before ``low`` are older than the time, and those from ``high`` on are not. The first
        probe is the oldest message, because a log without messages answers every probe by seconds of silence.
        """
        high, probe = offset_after(newest, self._name), low
        while low < high:
            message = yield from self.peek(probe, newest)
            if message is None or message.timestamp_ns >= time_ns:
                high = probe
            else:
                low = offset_after(message.offset, self._name)
            probe = (low + high) // 2
        return low

    def _first_message(self, request: api_pb2.SubscribeRequest, *, again: bool) -> LookupSteps[bytes | None]:
        """Find the first message of a subscription; None if none comes while the server answers calls."""
        yield Subscribe(request, again)
        if (yield Receive(_HANDSHAKE)) is None:  # an empty message: the subscription is established
            text = f"the subscription did not stand within {_HANDSHAKE} s"
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, text)
        for _ in range(_SILENCES):
            payload = yield Receive(_SILENCE)
            if isinstance(payload, bytes):
                return payload
            yield AskLeader()
        return None

    def _decoded(self, payload: bytes) -> Message:
        try:
            return _native.env.read_messages([payload])[0]
        except EnvelopeError as exc:
            text = f"{self._name}: the server sent bytes that are not a message: {payload[:40]!r}"
            raise ServerProtocolError(text, 0, True) from exc

    def _request(self, stop: int) -> api_pb2.SubscribeRequest:
        return api_pb2.SubscribeRequest(
            stream=self._stream,
            partition=self._partition,
            stopPosition=api_pb2.STOP_OFFSET,
            stopOffset=stop,
        )
