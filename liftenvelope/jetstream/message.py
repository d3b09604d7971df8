"""A message of a consumer, and its acknowledgement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from liftenvelope import envelope as codec
from liftenvelope._checks import as_text
from liftenvelope._native import frames
from liftenvelope.errors import UsageError
from liftenvelope.jetstream._records import to_ns
from liftenvelope.nats._headers import Headers, headers_of
from liftenvelope.nats._link import Link
from liftenvelope.nats._outcomes import positive

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["Acks", "Message", "MessageMetadata", "Recorder"]

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
IN_PROGRESS: Final = b"+WPI"
TERM: Final = b"+TERM"
#: ``$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>``.
_V1_TOKENS: Final = 9
#: ``$JS.ACK.<domain>.<account>.`` and the same, and perhaps a random token.
_V2_TOKENS: Final = 11
#: The header with the id of a pin.
PIN_HEADER: Final = "Nats-Pin-Id"
#: The size of a block of headers without any.
_EMPTY_BLOCK: Final = 12
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Acks:
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
        task.add_done_callback(self._sending.discard)

    async def send_and_wait(self, reply: str, payload: bytes, timeout: float | None) -> None:
        """Publish an ack and wait until the server has taken it."""
        await self._api.ask(reply, payload, timeout=timeout)


class Recorder(Acks):
    """Keeps acks in a list instead of sending them: to test handlers without a server.

    Example:
        >>> acks = Recorder()
        >>> Message("a", "$JS.ACK.S.C.1.7.3.0.2", b"hello", None, acks).ack()
        >>> acks.sent
        [('$JS.ACK.S.C.1.7.3.0.2', b'+ACK')]
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def send(self, message: frames.Delivered, payload: bytes) -> None:
        """Keep an ack."""
        self.sent.append((message.reply, payload))

    async def send_and_wait(self, reply: str, payload: bytes, timeout: float | None) -> None:
        """Keep an ack; the server that there is not takes it at once."""
        del timeout
        self.sent.append((reply, payload))


@dataclass(frozen=True, slots=True)
class MessageMetadata:
    """Where a message comes from, as its reply subject says.

    Attributes:
        stream: The stream's name.
        consumer: The consumer's name.
        stream_sequence: The message's number in the stream.
        consumer_sequence: The number of this delivery at the consumer.
        num_delivered: How often the message has been delivered, this time included.
        num_pending: How many messages the consumer had yet to deliver after this one.
        timestamp_ns: When the message was stored, in nanoseconds since 1970.
        domain: The JetStream domain, empty if there is none.
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
        """When the message was stored, in UTC, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    @classmethod
    def from_reply(cls, reply: str) -> MessageMetadata:
        """Read it from a reply subject of either form.

        Raises:
            UsageError: It is none: the message does not come from a consumer.

        Example:
            >>> MessageMetadata.from_reply("$JS.ACK.S.C.1.7.3.0.2").stream_sequence
            7
        """
        tokens = reply.split(".")
        if tokens[:2] != ["$JS", "ACK"] or not (len(tokens) == _V1_TOKENS or len(tokens) >= _V2_TOKENS):
            raise UsageError(f"{reply!r} is not the reply subject of a consumer's message")
        domain = ""
        if len(tokens) > _V1_TOKENS:
            domain = "" if tokens[2] == "_" else tokens[2]
            del tokens[2:4]
        try:
            delivered, sseq, cseq, ns, pending = map(int, tokens[4:9])
        except ValueError:
            raise UsageError(f"{reply!r} is not the reply subject of a consumer's message") from None
        return cls(tokens[2], tokens[3], sseq, cseq, delivered, pending, ns, domain)


class Message(frames.Delivered):
    """A message that a consumer delivered.

    Acknowledging is one of :meth:`ack`, :meth:`ack_sync`, :meth:`nak` and :meth:`term`, once; doing it twice
    is an error. All but ``ack_sync`` are plain calls: the ack is with the connection when they return.

    Attributes:
        subject: The subject that it was published to.
        reply: The subject that its ack goes to.
        data: The payload.
    """

    # Fields and all that is done with every message stand in the base, which is compiled.
    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(
            self, subject: str, reply: str, data: bytes, headers: Mapping[str, str] | None, acks: Acks
        ) -> None: ...

    @property
    def headers(self) -> Headers:
        """The headers, empty if there are none.

        Of a name that occurs twice nats-py keeps the last value only; on an accelerated connection all of
        them are here.
        """
        headers = self._headers
        if type(headers) is not Headers:
            read = headers_of(headers) if isinstance(headers, bytes) else Headers((headers or {}).items())
            headers = self._headers = read
        return headers

    @property
    def is_acked(self) -> bool:
        """Whether it has been acknowledged, in whichever way."""
        return self._acked

    @property
    def metadata(self) -> MessageMetadata:
        """Where it comes from; read when it is first asked for.

        Raises:
            UsageError: It does not come from a consumer.
        """
        if self._metadata is None:
            self._metadata = MessageMetadata.from_reply(self.reply)
        metadata: MessageMetadata = self._metadata
        return metadata

    def envelope(self) -> codec.Message | None:
        """The Liftbridge envelope that the payload is, None if it is none.

        Raises:
            EnvelopeError: It begins as an envelope and is not a sound one, or one of another type.
        """
        return codec.unmarshal_message(self.data) if codec.is_envelope(self.data) else None

    def ack(self) -> None:
        """Say that the message is done with.

        Raises:
            UsageError: It was acknowledged before, or can't be.
            TransportError: The connection is closed or draining, or is down and its buffer is full.
        """
        if not self._is_open:
            self._refuse()
        self._acks.send(self, ACK)
        self._acked = True

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Say that the message is done with, and wait until the server has noted it down.

        Args:
            timeout: How long to wait, in seconds. Default: that of the API.

        Raises:
            CallTimeoutError: No answer came. The server may have noted it; it may be tried again.
            NoJetStreamError: Nobody takes the ack: the consumer is gone.
            UsageError, TransportError: As for :meth:`ack`. The latter also when the connection was lost
                before the answer came, with ``sent``: it may be tried again.
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
        """Have the message delivered again.

        Args:
            delay: After how many seconds at the earliest. Default: at once.

        Raises:
            UsageError, TransportError: As for :meth:`ack`; or the delay is no positive number.
        """
        payload = NAK
        if delay is not None:
            payload += b" " + json.dumps({"delay": to_ns(positive("delay", delay))}).encode()
        self._finish(payload)

    def term(self, reason: str | None = None) -> None:
        """Have the message never delivered again, although it was not done with.

        Args:
            reason: Why, for the advisory that the server publishes. Default: no reason.

        Raises:
            UsageError, TransportError: As for :meth:`ack`.
        """
        text = "" if reason is None else as_text("reason", reason)
        self._finish(TERM + b" " + text.encode() if text else TERM)

    def in_progress(self) -> None:
        """Say that it takes longer: the server waits for ``ack_wait`` again. May be said any number of times.

        Raises:
            UsageError, TransportError: As for :meth:`ack`.
        """
        if not self._is_open:
            self._refuse()
        self._acks.send(self, IN_PROGRESS)

    @asynccontextmanager
    async def auto_ack_progress(self, every: float = 10.0) -> AsyncIterator[None]:
        """Say :meth:`in_progress` again and again while the body of an ``async with`` runs.

        Args:
            every: After how many seconds each; less than the consumer's ``ack_wait``. Default 10.

        Example::

            async with message.auto_ack_progress():
                await a_long_piece_of_work(message.data)
            message.ack()

        Raises:
            UsageError: ``every`` is no positive number, or the message was acknowledged before.
            TransportError: The connection was closed meanwhile.
        """
        positive("every", every)
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
        while not self._acked:
            await asyncio.sleep(every)
            if not self._acked:
                self.in_progress()

    def _finish(self, payload: bytes) -> None:
        if not self._is_open:
            self._refuse()
        self._acks.send(self, payload)
        self._acked = True

    def _refuse(self) -> None:
        if self.reply:
            raise UsageError(f"the message on {self.subject!r} was acknowledged before ({self.reply})")
        raise UsageError(f"the message on {self.subject!r} can't be acknowledged: it has no reply subject")

    def __repr__(self) -> str:
        return f"Message(subject={self.subject!r}, data={self.data[:32]!r}, reply={self.reply!r})"


def counted_size(message: Message) -> int:
    """The size of a message as the server counts it against ``max_bytes``.

    That is all of it but the id of a pin, which is added after the server has counted.
    """
    pin_id = message.headers.get(PIN_HEADER)
    if pin_id is None:
        return message._size
    line = len(PIN_HEADER) + len(pin_id.encode()) + 4
    return message._size - line - (_EMPTY_BLOCK if len(message.headers) == 1 else 0)
