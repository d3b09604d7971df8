"""Protocol of an ack reader, without I/O: turns deliveries of JetStream into commands to write.

A push consumer with heartbeats and flow control sends messages and two kinds of status (ADR-15). A heartbeat
comes when there is nothing else to deliver, and carries the number of the last delivery. A flow control
request must be answered before more messages come.

"Ack" here means the ack for a publisher. "Acknowledgement" means the one for JetStream. An acknowledgement is
cumulative and costs the server a step of its own, so under load it is sent at intervals and not with each
batch. The invariant: a message is acknowledged only after its publisher's ack is written. If the reader dies
in between, the message is delivered and acked again, so acks are sent at least once.

The state is broken when a delivery is missing, the consumer is gone, or written commands may be lost. A
broken flow takes nothing until :meth:`AckFlow.begin` starts a reading with a new consumer.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from liftenvelope._native import acks

__all__ = ["AckCommands", "AckFlow"]

_CONTROL: Final = b"NATS/1.0 100"
_LAST_DELIVERY: Final = b"nats-last-consumer"
_STALLED: Final = b"nats-consumer-stalled"
#: Heartbeat intervals of silence after which the consumer counts as gone.
_MISSED: Final = 2.5
#: Messages after which an acknowledgement is due at once. JetStream delivers at most 65,536 beyond the last.
_MOST_OWED: Final = 4_096
#: Minimum seconds between two acknowledgements to JetStream, unless ``_MOST_OWED`` messages wait.
ACKNOWLEDGE_EVERY: Final = 0.02


class AckCommands(NamedTuple):
    """Commands to write to the connection: first the acks, then the acknowledgement to JetStream.

    Attributes:
        frames: The commands, encoded.
        messages: Number of commands.
        payload: Total size of their payloads in bytes.
        acks: Number of commands that are acks for publishers.
    """

    frames: bytes
    messages: int
    payload: int
    acks: int


class AckFlow:
    """State of an ack reader over successive consumers.

    Args:
        stream: Name of the Liftbridge stream, for the acks.
        partition_subject: Subject of the partition, for the acks.
        max_ack: Largest message that the server accepts, in bytes.
        heartbeat: Heartbeat interval of the consumer, in seconds.
        inboxes: Allowed prefixes of ack inboxes. Default: any inbox is allowed.
    """

    def __init__(
        self,
        stream: str,
        partition_subject: str,
        *,
        max_ack: int,
        heartbeat: float,
        inboxes: tuple[bytes, ...] = (b"",),
    ) -> None:
        self._acks = acks.Acknowledger(stream, partition_subject, max_ack, inboxes)
        self._patience = _MISSED * heartbeat
        self._heard = 0.0
        self._broken = True
        self._owed = 0
        self._next = 0.0

    @property
    def position(self) -> int:
        """Stream sequence of the last message whose ack was written in this reading, 0 for none."""
        return self._acks.stream_sequence

    @property
    def delivery(self) -> int:
        """Consumer sequence of the last delivery received, in this reading or by an earlier reader."""
        return self._acks.delivery

    @property
    def refused(self) -> bytes:
        """Beginning of a disallowed ack inbox among the last messages taken; empty for none."""
        return self._acks.refused

    @property
    def broken(self) -> bool:
        """True if something was lost and a new consumer must deliver it again."""
        return self._broken or self._acks.gap

    def begin(self, now: float) -> None:
        """Begin a reading with a new consumer, which has delivered nothing yet."""
        self._acks.begin()
        self._broken = False
        self._heard = self._next = now
        self._owed = 0

    def follow(self, delivery: int) -> None:
        """Expect the delivery after this one first: the consumer is that of an earlier reader.

        Args:
            delivery: Consumer sequence of the last delivery to that reader, which has acknowledged all.
        """
        self._acks.begin(delivery)

    def give_up(self) -> None:
        """Take nothing until the next reading, because written commands may be lost."""
        self._broken = True

    def patience(self, now: float) -> float:
        """Return the seconds of silence left before the consumer counts as gone; 0 or less if it does."""
        return self._heard + self._patience - now

    def feed(self, messages: list[Any], now: float, now_ns: int) -> AckCommands:
        """Process a batch of deliveries, as :func:`subscribe_direct` passes it on.

        Args:
            messages: Tuples of subject, reply, headers and payload.
            now: Time on the clock of :meth:`begin`, in seconds.
            now_ns: Time in nanoseconds since 1970, for the acks.

        Returns:
            Commands to write in one piece, because the acks must precede the acknowledgement to JetStream. If
            :attr:`owes` is true afterwards, the caller must call :meth:`settle` later.
        """
        if self.broken:
            return AckCommands(b"", 0, 0, 0)
        self._heard = now
        before = self._acks.stream_sequence
        frames, count, size, others = self._acks.take(messages, now_ns)
        written = count
        self._owed += self._acks.stream_sequence - before
        # A repeated delivery means that JetStream did not get an earlier acknowledgement.
        if self._acks.repeated or (self._owed and (now >= self._next or self._owed >= _MOST_OWED)):
            frames += self._acknowledgement(now)
            written, size = written + 1, size + 4
        for _, reply, headers, _ in others:
            for answer in self._answers(reply, headers or b""):
                frames += b"PUB %b 0\r\n\r\n" % answer
                written += 1
        return AckCommands(frames, written, size, count)

    @property
    def owes(self) -> bool:
        """True if acked messages are not yet acknowledged to JetStream."""
        return self._owed > 0 and not self.broken

    def settle(self, now: float) -> AckCommands:
        """Return the acknowledgement to JetStream for all acked messages; empty if none is owed."""
        if not self.owes:
            return AckCommands(b"", 0, 0, 0)
        return AckCommands(self._acknowledgement(now), 1, 4, 0)

    def _acknowledgement(self, now: float) -> bytes:
        self._owed, self._next = 0, now + ACKNOWLEDGE_EVERY
        return b"PUB %b 4\r\n+ACK\r\n" % self._acks.reply

    def _answers(self, reply: bytes, headers: bytes) -> list[bytes]:
        """Return the subjects that answer a status; note if the status means that the consumer is broken."""
        if not headers.startswith(_CONTROL):
            # The consumer was deleted, or its server is stopping.
            self._broken = self._broken or headers.startswith(b"NATS/1.0 ")
            return []
        if reply:
            return [reply]
        told = _fields(headers)
        last = told.get(_LAST_DELIVERY, b"")
        if last.isdigit() and int(last) > self._acks.delivery:
            self._broken = True
        stalled = told.get(_STALLED, b"")
        return [stalled] if stalled else []


def _fields(headers: bytes) -> dict[bytes, bytes]:
    """Parse the lines of a header block, with names in lower case."""
    lines = (line.partition(b":") for line in headers.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines if name}
