r"""Acks for messages stored by JetStream: the twin of ``_fastacks``.

JetStream delivers a stored message with a reply subject that carries its position::

    $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<ns>.<pending>
    $JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<ns>.<pending>[.<random>]

``sseq`` is the stream sequence, ``dseq`` the delivery sequence of the consumer, ``ns`` the time of storage in
nanoseconds since 1970. Of the payload, only the envelope's ack inbox, correlation id and ack policy are used.
"""

from __future__ import annotations

from typing import Any, Final, final

from liftenvelope import _wire as w
from liftenvelope._checks import as_bytes, as_text
from liftenvelope._native.env import marshal_ack, unmarshal_message
from liftenvelope._native.values import Ack
from liftenvelope.errors import EnvelopeError, UsageError
from liftenvelope.types import AckPolicy

__all__ = ["Acknowledger", "is_ack_inbox"]

_STORED: Final = b"$JS.ACK."
_V1_TOKENS: Final = 9
_V2_TOKENS: Final = 11
_MOST_DIGITS: Final = 19
_LARGEST: Final = 2**63 - 1
#: Bytes. A server accepts lines of 4,096 bytes by default, and closes a connection that sends a longer one.
_LONGEST_INBOX: Final = 2_048
_ANSWERED: Final = (AckPolicy.LEADER, AckPolicy.ALL)
_INTERNAL: Final = tuple(subject.encode() for subject in w.INTERNAL_SUBJECTS)
#: Bytes of a refused inbox kept for the log line.
_SHOWN: Final = 100


def is_ack_inbox(inbox: bytes, prefixes: tuple[bytes, ...] = (b"",)) -> bool:
    r"""Return True if an ack may be sent to this subject, which a publisher has chosen.

    A malformed subject would end our connection or inject another command into it. An internal subject
    (``$JS.API``, ``$KV``, ``_lift``, ``liftenvelope.groups``) would be reached with our permissions.

    Args:
        inbox: The subject.
        prefixes: Allowed prefixes of the subject. Default: any.

    >>> [is_ack_inbox(inbox) for inbox in (b"_INBOX.a.1", b"a.*", b"a b", b"$KV.a.b", b"_lift.a", b"")]
    [True, False, False, False, False, False]
    >>> is_ack_inbox(b"acks.1", (b"_INBOX.",))
    False
    """
    if not 0 < len(inbox) <= _LONGEST_INBOX or inbox.startswith(_INTERNAL):
        return False
    if not inbox.startswith(prefixes):
        return False
    if any(byte <= 0x20 or byte == 0x7F for byte in inbox):
        return False
    return not any(token in (b"", b"*", b">") for token in inbox.split(b"."))


def _number(digits: bytes) -> int:
    """Parse a number of at most 63 bits; return -1 if it is malformed or larger."""
    if not 0 < len(digits) <= _MOST_DIGITS or not digits.isdigit():
        return -1
    return number if (number := int(digits)) <= _LARGEST else -1


def _place(reply: bytes) -> tuple[int, int, int] | None:
    """Parse stream sequence, delivery sequence and time; return None for other reply subjects."""
    if not reply.startswith(_STORED):
        return None
    tokens = reply.split(b".")
    at = 0 if len(tokens) == _V1_TOKENS else 2
    if at and len(tokens) < _V2_TOKENS:
        return None
    found = (_number(tokens[at + 5]), _number(tokens[at + 6]), _number(tokens[at + 7]))
    return found if min(found) >= 0 and found[0] and found[1] else None


@final
class Acknowledger:
    """Writes acks for the messages of one partition, as a consumer delivers them.

    Invariant: an ack to :attr:`reply` covers no message that was not taken here. Deliveries are numbered
    without gaps, and an ack to JetStream covers all earlier deliveries. If a delivery is missing, an ack of
    the next one would cover it, and the publisher of the missing message would never get an ack. So after a
    gap no message is taken, until :meth:`begin` with a consumer that redelivers.

    Args:
        stream: Name of the Liftbridge stream, for the acks.
        partition_subject: Subject of the partition, for the acks.
        max_ack: Largest message that the server accepts, in bytes. A larger ack is not written.
        prefixes: Allowed prefixes of an ack inbox. Default: any.

    Attributes:
        reply: Reply subject of the last message taken, empty if none. An ack to it covers that message and
            all before it.
        stream_sequence: Stream sequence of the last message taken, 0 if none.
        delivery: Delivery sequence of the last message taken; that passed to :meth:`begin` if none.
        gap: True if a delivery is missing.
        repeated: True if the last call of :meth:`take` got a message that had been taken before.
        refused: Beginning of the last disallowed ack inbox seen by the last call of :meth:`take`; empty if
            none.
    """

    __slots__ = (
        "_max_ack",
        "_partition_subject",
        "_prefixes",
        "_stream",
        "delivery",
        "gap",
        "refused",
        "repeated",
        "reply",
        "stream_sequence",
    )

    def __init__(
        self, stream: str, partition_subject: str, max_ack: int, prefixes: tuple[bytes, ...] = (b"",)
    ) -> None:
        self._stream = as_text("stream", stream)
        self._partition_subject = as_text("partition_subject", partition_subject)
        if max_ack < 1:
            raise UsageError(f"max_ack must be at least 1, got {max_ack}")
        self._max_ack = max_ack
        self._prefixes = tuple(as_bytes("prefix", prefix) for prefix in prefixes)
        self.begin()

    def begin(self, delivery: int = 0) -> None:
        """Start with another consumer.

        Args:
            delivery: Delivery sequence of its last message, which is acknowledged. Default 0: none.
        """
        self.reply = b""
        self.stream_sequence = 0
        self.delivery = delivery
        self.gap = False
        self.repeated = False
        self.refused = b""

    def take(self, messages: list[Any], now_ns: int) -> tuple[bytes, int, int, list[Any]]:
        """Take messages, in the order of their delivery; return their acks.

        A message whose stream sequence is not higher than that of an earlier message is skipped: its ack has
        been written.

        Args:
            messages: Tuples of subject (``str``), reply subject, headers (or None) and payload (``bytes``).
            now_ns: Commit timestamp for the acks, in nanoseconds since 1970.

        Returns:
            The acks as PUB commands, the number of acks, the bytes of their payloads, and the messages that
            were not delivered from a stream.
        """
        frames: list[bytes] = []
        self.repeated = False
        self.refused = b""
        size, others = 0, []
        for message in messages:
            subject, reply, _, payload = message
            if (place := _place(reply)) is None:
                others.append(message)
            elif self._is_next(place, reply) and (ack := self._ack(subject, place, payload, now_ns)):
                inbox, envelope = ack
                frames.append(b"PUB %b %d\r\n%b\r\n" % (inbox, len(envelope), envelope))
                size += len(envelope)
        return b"".join(frames), len(frames), size, others

    def _is_next(self, place: tuple[int, int, int], reply: bytes) -> bool:
        """Record a delivery; return True if there is no gap and the message is new."""
        stream_sequence, delivery, _ = place
        self.gap = self.gap or delivery != self.delivery + 1
        if self.gap:
            return False
        self.delivery = delivery
        if stream_sequence <= self.stream_sequence:
            self.repeated = True
            return False
        self.stream_sequence, self.reply = stream_sequence, reply
        return True

    def _ack(
        self, subject: str, place: tuple[int, int, int], payload: bytes, now_ns: int
    ) -> tuple[bytes, bytes] | None:
        """Return the ack inbox and the ack, or None if the message gets no ack."""
        try:
            message = unmarshal_message(payload)
        except EnvelopeError:
            return None  # not an envelope: stored as a plain value, without an ack
        inbox = message.ack_inbox.encode()
        if message.ack_policy not in _ANSWERED:
            return None
        if not is_ack_inbox(inbox, self._prefixes):
            self.refused = inbox[:_SHOWN] or self.refused
            return None
        envelope = marshal_ack(
            Ack(
                stream=self._stream,
                partition_subject=self._partition_subject,
                msg_subject=subject,
                offset=place[0] - 1,
                ack_inbox=message.ack_inbox,
                correlation_id=message.correlation_id,
                ack_policy=message.ack_policy,
                reception_timestamp_ns=place[2],
                commit_timestamp_ns=now_ns,
            )
        )
        return (inbox, envelope) if len(envelope) <= self._max_ack else None
