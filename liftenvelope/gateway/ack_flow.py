"""What a reader of stored messages does with what JetStream sends it, without doing it.

A push consumer with heartbeats and flow control sends, beside messages, two kinds of status (ADR-15): a
heartbeat when there is nothing else, which tells the number of the last delivery, and a request of flow
control, which must be answered before more comes.

An acknowledgement to JetStream holds for all messages before it, and costs the server a turn of its own. So
under load one is written now and then, not with each piece that is read: what has its ack but is not yet
acknowledged is delivered and acked once more if the reader dies.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from liftenvelope._native import acks

__all__ = ["AckFlow", "Written"]

_CONTROL: Final = b"NATS/1.0 100"
_LAST_DELIVERY: Final = b"nats-last-consumer"
_STALLED: Final = b"nats-consumer-stalled"
#: After how many intervals without a word of the consumer it is taken to be gone.
_MISSED: Final = 2.5
#: The most messages that are acknowledged at once. JetStream delivers no more than 65,536 beyond them.
_MOST_OWED: Final = 4_096
#: The least time between two acknowledgements to JetStream, in seconds, unless many messages wait.
ACKNOWLEDGE_EVERY: Final = 0.02


class Written(NamedTuple):
    """Commands for the connection: the acks first, then the acknowledgement to JetStream.

    Attributes:
        frames: The commands.
        messages: How many they are.
        payload: The bytes of their payloads.
        acks: How many of them are acks of publishers.
    """

    frames: bytes
    messages: int
    payload: int
    acks: int


class AckFlow:
    """The state of a reader: of what it reads by one consumer, and then by the next.

    Args:
        stream: The Liftbridge stream's name, for the acks.
        partition_subject: The partition's subject, for the acks.
        max_ack: The largest message that the server takes, in bytes.
        heartbeat: How often the consumer says that it is there, in seconds.
        inboxes: What an ack inbox must begin with. Default: anything.
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
        """Number in the stream of the last message whose ack was written, 0 for none of this reading."""
        return self._acks.stream_sequence

    @property
    def delivery(self) -> int:
        """Number of the consumer's last delivery that came in this reading, 0 for none."""
        return self._acks.delivery

    @property
    def refused(self) -> bytes:
        """Beginning of an ack inbox that is not allowed, among the last messages taken; empty for none."""
        return self._acks.refused

    @property
    def broken(self) -> bool:
        """Whether something was lost, so that the consumer must be made to deliver again."""
        return self._broken or self._acks.gap

    def begin(self, now: float) -> None:
        """Begin a reading: what comes from now on is of a consumer that has delivered nothing yet."""
        self._acks.begin()
        self._broken = False
        self._heard = self._next = now
        self._owed = 0

    def give_up(self) -> None:
        """Take nothing more until the next reading: what was written has not gone out."""
        self._broken = True

    def patience(self, now: float) -> float:
        """For how many more seconds the consumer may be silent; 0 or less if it is taken to be gone."""
        return self._heard + self._patience - now

    def feed(self, messages: list[Any], now: float, now_ns: int) -> Written:
        """Take what has come, as :func:`subscribe_direct` hands it over.

        Args:
            messages: Tuples of subject, reply, headers and payload.
            now: The time on the clock of :meth:`begin`.
            now_ns: The time in nanoseconds since 1970, for the acks.

        Returns:
            What to write to the connection, in one piece: JetStream must not hear that a message is done
            before its ack is on its way. After some of it :meth:`settle` is to follow: see :attr:`owes`.
        """
        if self.broken:
            return Written(b"", 0, 0, 0)
        self._heard = now
        before = self._acks.stream_sequence
        frames, count, size, others = self._acks.take(messages, now_ns)
        written = count
        self._owed += self._acks.stream_sequence - before
        # What comes again was acknowledged, and that got lost.
        if self._acks.repeated or (self._owed and (now >= self._next or self._owed >= _MOST_OWED)):
            frames += self._acknowledgement(now)
            written, size = written + 1, size + 4
        for _, reply, headers, _ in others:
            for answer in self._answers(reply, headers or b""):
                frames += b"PUB %b 0\r\n\r\n" % answer
                written += 1
        return Written(frames, written, size, count)

    @property
    def owes(self) -> bool:
        """Whether messages have their acks, and JetStream does not know."""
        return self._owed > 0 and not self.broken

    def settle(self, now: float) -> Written:
        """Return what tells JetStream of all messages that have their acks."""
        if not self.owes:
            return Written(b"", 0, 0, 0)
        return Written(self._acknowledgement(now), 1, 4, 0)

    def _acknowledgement(self, now: float) -> bytes:
        self._owed, self._next = 0, now + ACKNOWLEDGE_EVERY
        return b"PUB %b 4\r\n+ACK\r\n" % self._acks.reply

    def _answers(self, reply: bytes, headers: bytes) -> list[bytes]:
        """Subjects to publish to, so that the consumer goes on."""
        if not headers.startswith(_CONTROL):
            # The consumer was deleted, or its server stops.
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
    """The lines of a header block, names in lower case."""
    lines = (line.partition(b":") for line in headers.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines if name}
