r"""The acks of what JetStream has stored: the twin of ``_fastacks``.

JetStream delivers a stored message with a reply subject that says where it stands::

    $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<ns>.<pending>
    $JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<ns>.<pending>[.<random>]

``sseq`` is its number in the stream, ``dseq`` that of the delivery, ``ns`` when it was stored. Of its payload
an envelope's ack inbox, correlation id and ack policy are needed, nothing else.
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
#: A server takes lines of 4,096 bytes by default, and ends a connection that sends a longer one.
_LONGEST_INBOX: Final = 2_048
_ANSWERED: Final = (AckPolicy.LEADER, AckPolicy.ALL)
_INTERNAL: Final = tuple(subject.encode() for subject in w.INTERNAL_SUBJECTS)
#: Bytes of a refused inbox that are kept for a log line.
_SHOWN: Final = 100


def is_ack_inbox(inbox: bytes, prefixes: tuple[bytes, ...] = (b"",)) -> bool:
    r"""Return whether an ack may go to this subject, which a publisher has chosen.

    A subject that is malformed would end our connection or write another command on it. An internal one
    (``$JS.API``, ``$KV``, ``_lift``) would be reached with our permissions.

    Args:
        inbox: The subject.
        prefixes: What it must begin with. Default: anything.

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
    """The number; -1 if it is none of 63 bits."""
    if not 0 < len(digits) <= _MOST_DIGITS or not digits.isdigit():
        return -1
    return number if (number := int(digits)) <= _LARGEST else -1


def _place(reply: bytes) -> tuple[int, int, int] | None:
    """Number in the stream, number of the delivery, time; None if the subject does not say."""
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
    """Writes the acks of one partition's messages, as they are delivered by a consumer.

    Deliveries are numbered from 1 on without a gap. When one is missing, what was in it would be acknowledged
    to JetStream by the next one, and its publisher would never hear of it: from there on nothing is taken,
    until :meth:`begin` with a consumer that delivers again.

    Args:
        stream: The Liftbridge stream's name, as acks name it.
        partition_subject: The partition's subject, as acks name it.
        max_ack: The largest message that the server takes, in bytes: a larger ack is not written.
        prefixes: What an ack inbox must begin with. Default: anything.

    Attributes:
        reply: The reply subject of the last message that was taken, empty if there is none: it acknowledges
            that one and all before it.
        stream_sequence: Its number in the stream, 0 if there is none.
        delivery: The number of its delivery, 0 if there is none.
        gap: Whether a delivery is missing.
        repeated: Whether there was a message among the last ones that had been taken before.
        refused: Beginning of the last ack inbox that got no ack because it is not allowed, of the last
            messages taken; empty if there is none.
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
            raise UsageError(f"max_ack must be at least 1, not {max_ack}")
        self._max_ack = max_ack
        self._prefixes = tuple(as_bytes("prefix", prefix) for prefix in prefixes)
        self.begin()

    def begin(self) -> None:
        """Begin with a consumer that has delivered nothing yet."""
        self.reply = b""
        self.stream_sequence = 0
        self.delivery = 0
        self.gap = False
        self.repeated = False
        self.refused = b""

    def take(self, messages: list[Any], now_ns: int) -> tuple[bytes, int, int, list[Any]]:
        """Take messages, in the order in which they were delivered.

        A message that stands no later in the stream than one that was taken before is passed over: its ack
        has been written.

        Args:
            messages: Tuples of subject (``str``), reply subject, headers (or None) and payload (``bytes``).
            now_ns: The time, in nanoseconds since 1970, that stands in the acks as that of the commit.

        Returns:
            The acks as PUB commands; how many they are; the bytes of their payloads; and those of the
            messages that are not from a stream.
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
        """Whether the message is the next one, and new."""
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
        """The ack inbox and the ack, None if there is to be none."""
        try:
            message = unmarshal_message(payload)
        except EnvelopeError:
            return None  # stored as it is, as a plain value
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
