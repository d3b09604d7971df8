"""Messages delivered by a consumer, and their acknowledgement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from liftenvelope import envelope as codec
from liftenvelope._checks import MAX_INT64, as_seconds, as_text
from liftenvelope._native import frames
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.jetstream._event_log import log_unsent_ack
from liftenvelope.jetstream._records import to_ns
from liftenvelope.nats.headers import Headers, headers_of
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = [
    "AckSender",
    "Block",
    "Message",
    "MessageMetadata",
    "Recorder",
    "deliveries_of",
    "give_back",
    "sequences_of",
    "stored_at",
    "stored_times",
]

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
IN_PROGRESS: Final = b"+WPI"
TERM: Final = b"+TERM"
#: Tokens of ``$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>``.
_V1_TOKENS: Final = 9
#: Minimum tokens of the newer form: ``$JS.ACK.<domain>.<account>.``, the same fields, and perhaps a random
#: token.
_V2_TOKENS: Final = 11
#: Header that carries the pin id.
PIN_HEADER: Final = "Nats-Pin-Id"
#: Bytes of an empty header block.
_EMPTY_BLOCK: Final = 12
#: Headers of every message that has none.
_NO_HEADERS: Final = Headers()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class AckSender:
    """Sends the acks of one consumer's messages on the user's connection."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._link = Link(api.nc)
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, message: frames.Delivered, payload: bytes) -> None:
        """Publish the ack of a message.

        Raises:
            TransportError: The connection is closed or draining, or is down and its buffer is full.
        """
        frame = message._ack_frame(payload)
        if self._link.offer(frame, len(payload)):
            return
        if self._link.direct:
            self._link.write(frame, 1, len(payload))
            return
        self._link.check_open()
        task = asyncio.ensure_future(self._link.publish(message.reply, payload))
        self._sending.add(task)
        task.add_done_callback(partial(self._sent, message.reply))

    def _sent(self, reply: str, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_unsent_ack(reply, error)

    def check_open(self) -> None:
        """Raise TransportError if no ack can be sent any more: the connection is closed or draining."""
        self._link.check_open()

    async def send_and_wait(self, reply: str, payload: bytes, timeout: float | None) -> None:
        """Publish an ack and wait until the server confirms it."""
        await self._api.ask(reply, payload, timeout=timeout)


class Recorder(AckSender):
    """Records acks in a list instead of sending them, to test handlers without a server.

    Example:
        >>> acks = Recorder()
        >>> Message("a", "$JS.ACK.S.C.1.7.3.0.2", b"hello", None, acks).ack()
        >>> acks.sent
        [('$JS.ACK.S.C.1.7.3.0.2', b'+ACK')]
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def send(self, message: frames.Delivered, payload: bytes) -> None:
        """Record an ack."""
        self.sent.append((message.reply, payload))

    async def send_and_wait(self, reply: str, payload: bytes, timeout: float | None) -> None:
        """Record an ack and return at once."""
        del timeout
        self.sent.append((reply, payload))

    def check_open(self) -> None:
        """Do nothing: acks can always be recorded."""


@dataclass(frozen=True, slots=True)
class MessageMetadata:
    """Origin of a delivered message, read from its reply subject.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        stream_sequence: Sequence of the message in the stream.
        consumer_sequence: Sequence of this delivery at the consumer.
        num_delivered: Number of deliveries of the message, including this one.
        num_pending: Number of messages left to deliver after this one.
        timestamp_ns: Time when the message was stored, in nanoseconds since 1970.
        domain: JetStream domain; empty if there is none.
    """

    stream: str
    consumer: str
    stream_sequence: int
    consumer_sequence: int
    num_delivered: int
    num_pending: int
    timestamp_ns: int
    domain: str = ""

    @property
    def timestamp(self) -> datetime:
        """Time when the message was stored, in UTC, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    @classmethod
    def from_reply(cls, reply: str) -> MessageMetadata:
        """Parse a reply subject of either form.

        Raises:
            UsageError: The reply subject is not a consumer's: the message does not come from a consumer.

        Example:
            >>> MessageMetadata.from_reply("$JS.ACK.S.C.1.7.3.0.2").stream_sequence
            7
        """
        tokens = reply.split(".")
        start = _numbers_at(reply, tokens)
        try:
            delivered, sseq, cseq, ns, pending = map(int, tokens[start : start + 5])
        except ValueError:
            raise _not_a_consumers(reply) from None
        domain = ""
        if len(tokens) > _V1_TOKENS:
            domain = "" if tokens[2] == "_" else tokens[2]
            del tokens[2:4]
        return cls(tokens[2], tokens[3], sseq, cseq, delivered, pending, ns, domain)


def sequences_of(reply: str) -> tuple[int, int]:
    """Return the stream sequence and the consumer sequence in a reply subject.

    A quarter of the cost of :meth:`MessageMetadata.from_reply`, because no other number is read or checked.

    Raises:
        UsageError: The message does not come from a consumer.

    Example:
        >>> sequences_of("$JS.ACK.S.C.1.7.3.0.2")
        (7, 3)
    """
    tokens = reply.split(".")
    start = _numbers_at(reply, tokens)
    try:
        return int(tokens[start + 1]), int(tokens[start + 2])
    except ValueError:
        raise _not_a_consumers(reply) from None


def deliveries_of(reply: str) -> int:
    """Return how often a message was delivered, this delivery included.

    Like :func:`sequences_of`, it reads and checks no other number.

    Raises:
        UsageError: The message does not come from a consumer.

    Example:
        >>> deliveries_of("$JS.ACK.S.C.1.7.3.0.2")
        1
    """
    return _number_in(reply, 0)


def stored_at(reply: str) -> int:
    """Return the time in a reply subject at which the message was stored, in nanoseconds since 1970.

    Like :func:`sequences_of`, it reads and checks no other number.

    Raises:
        UsageError: The message does not come from a consumer.

    Example:
        >>> stored_at("$JS.ACK.S.C.1.7.3.1700000000123456789.2")
        1700000000123456789
    """
    return _number_in(reply, 3)


def _number_in(reply: str, place: int) -> int:
    """Return one of the numbers in a reply subject, counted from the deliveries on."""
    tokens = reply.split(".")
    try:
        return int(tokens[_numbers_at(reply, tokens) + place])
    except ValueError:
        raise _not_a_consumers(reply) from None


def stored_times(blocks: list[frames.MessageBlock[Message]]) -> bytes:
    """Return the times at which messages were stored, as 64-bit numbers in nanoseconds since 1970.

    Raises:
        UsageError: A message does not come from a consumer.
    """
    return frames.stored_times(blocks, stored_at)


def _numbers_at(reply: str, tokens: list[str]) -> int:
    """Return the index of the number of deliveries, the first number, in the tokens of a reply subject."""
    count = len(tokens)
    if (count == _V1_TOKENS or count >= _V2_TOKENS) and tokens[0] == "$JS" and tokens[1] == "ACK":
        return 4 if count == _V1_TOKENS else 6
    raise _not_a_consumers(reply)


def _not_a_consumers(reply: str) -> UsageError:
    return UsageError(f"reply must be the reply subject of a consumer's message, got {reply!r}")


class Message(frames.Delivered):
    """A message that a consumer delivered.

    Acknowledge a message once, by :meth:`ack`, :meth:`ack_sync`, :meth:`nak` or :meth:`term`; a second
    acknowledgement raises an error. All but ``ack_sync`` are plain calls: when they return, the ack has been
    handed to the connection.

    Attributes:
        subject: Subject that the message was published to.
        reply: Subject that the ack is sent to.
        data: Payload.
    """

    # The fields and the per-message work are in the compiled base class.
    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(
            self, subject: str, reply: str, data: bytes, headers: Mapping[str, str] | None, acks: AckSender
        ) -> None: ...

    @property
    def headers(self) -> Headers:
        """Headers of the message; empty if there are none.

        nats-py keeps only the last value of a name that occurs twice. An accelerated connection keeps all
        values.
        """
        headers = self._headers
        if type(headers) is not Headers:
            if not headers:
                read = _NO_HEADERS
            else:
                read = headers_of(headers) if isinstance(headers, bytes) else Headers(headers.items())
            headers = self._headers = read
        return headers

    @property
    def is_acked(self) -> bool:
        """True if the message was acknowledged by any of the four methods."""
        return self._acked

    @property
    def metadata(self) -> MessageMetadata:
        """Origin of the message; parsed on first access.

        Raises:
            UsageError: The message does not come from a consumer.
        """
        if self._metadata is None:
            self._metadata = MessageMetadata.from_reply(self.reply)
        metadata: MessageMetadata = self._metadata
        return metadata

    def envelope(self) -> codec.Message | None:
        """Decode the payload as a Liftbridge envelope; return None if the payload is not an envelope.

        Raises:
            EnvelopeError: The payload starts like an envelope but is malformed, or has another message type.
        """
        return codec.unmarshal_message(self.data) if codec.is_envelope(self.data) else None

    def ack(self) -> None:
        """Acknowledge the message.

        Raises:
            UsageError: The message was acknowledged before, or has no reply subject.
            TransportError: The connection is closed or draining, or is down and its buffer is full.
        """
        if not self._is_open:
            self._refuse()
        self._acks.send(self, ACK)
        self._acked = True

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Acknowledge the message and wait until the server has recorded the ack.

        Args:
            timeout: Seconds to wait. Default: the timeout of the API.

        Raises:
            CallTimeoutError: No reply arrived. The server may have recorded the ack; calling again is safe.
            NoJetStreamError: No responders for the ack: the consumer is gone.
            UsageError, TransportError: As for :meth:`ack`. Also ``TransportError`` with ``sent`` if the
                connection was lost before the reply; calling again is safe.
        """
        if not self._is_open:
            self._refuse()
        self._acked = True
        answered = False
        try:
            await self._acks.send_and_wait(self.reply, ACK, timeout)
            answered = True
        finally:
            self._acked = answered

    def nak(self, delay: float | None = None) -> None:
        """Reject the message, so that the server redelivers it.

        Args:
            delay: Minimum seconds before the redelivery, at most 292 years. Default: redeliver at once.

        Raises:
            UsageError, TransportError: As for :meth:`ack`. Also ``UsageError`` if ``delay`` is not positive.
        """
        payload = NAK
        if delay is not None:
            payload += (
                b" " + json.dumps({"delay": min(to_ns(as_seconds("delay", delay)), MAX_INT64)}).encode()
            )
        self._finish(payload)

    def term(self, reason: str | None = None) -> None:
        """Terminate the message: the server never redelivers it, although it was not processed.

        Args:
            reason: Reason for the advisory that the server publishes. Default: no reason.

        Raises:
            UsageError, TransportError: As for :meth:`ack`.
        """
        text = "" if reason is None else as_text("reason", reason)
        self._finish(TERM + b" " + text.encode() if text else TERM)

    def in_progress(self) -> None:
        """Report that the work goes on, which restarts ``ack_wait`` at the server. Can be repeated.

        Raises:
            UsageError, TransportError: As for :meth:`ack`.
        """
        if not self._is_open:
            self._refuse()
        self._acks.send(self, IN_PROGRESS)

    @asynccontextmanager
    async def auto_ack_progress(self, every: float = 10.0) -> AsyncIterator[None]:
        """Call :meth:`in_progress` periodically while the body of an ``async with`` runs.

        A call is left out while the connection is down and its buffer is full.

        Args:
            every: Seconds between two calls; less than the consumer's ``ack_wait``. Default 10.

        Example::

            async with message.auto_ack_progress():
                await a_long_piece_of_work(message.data)
            message.ack()

        Raises:
            UsageError: ``every`` is not positive, or the message was acknowledged before.
            TransportError: The connection was closed meanwhile.
        """
        as_seconds("every", every)
        if not self._is_open:
            self._refuse()
        repeating = asyncio.get_running_loop().create_task(self._repeat_progress(every))
        try:
            yield
        finally:
            repeating.cancel()
            await asyncio.wait({repeating})
        if not repeating.cancelled():
            repeating.result()

    async def _repeat_progress(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            if self._acked:
                continue  # perhaps not for good: an ack_sync may fail
            try:
                self.in_progress()
            except TransportError:
                self._acks.check_open()

    def _finish(self, payload: bytes) -> None:
        if not self._is_open:
            self._refuse()
        self._acks.send(self, payload)
        self._acked = True

    def _refuse(self) -> None:
        if self.reply:
            raise UsageError(f"the message on {self.subject!r} was acknowledged before ({self.reply})")
        raise UsageError(f"the message on {self.subject!r} cannot be acknowledged: it has no reply subject")

    def __repr__(self) -> str:
        return f"Message(subject={self.subject!r}, data={self.data[:32]!r}, reply={self.reply!r})"


#: Messages of one consumer in a row, which are made when asked for.
Block: TypeAlias = "frames.MessageBlock[Message]"


def give_back(messages: Iterable[Message]) -> None:
    """Nak messages that nobody gets, so that they are redelivered now instead of after ``ack_wait``."""
    for message in messages:
        try:
            message.nak()
        except TransportError:
            return  # connection lost: the server redelivers after ack_wait


def counted_size(message: Message) -> int:
    """Return the size of a message as the server counts it against ``max_bytes``, in bytes.

    The pin id header does not count: the server adds it after counting.
    """
    pin_id = message.headers.get(PIN_HEADER)
    if pin_id is None:
        return message._size
    line = len(PIN_HEADER) + len(pin_id.encode()) + 4
    return message._size - line - (_EMPTY_BLOCK if len(message.headers) == 1 else 0)
