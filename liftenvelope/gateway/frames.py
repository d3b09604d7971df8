"""Messages as they lie in JetStream, made into the gRPC messages of a Subscribe call. Without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope import _wire as w
from liftenvelope._payloads_py import put_headers
from liftenvelope._protobuf_py import put_bytes, put_text, put_varint_field
from liftenvelope.envelope import unmarshal_message
from liftenvelope.errors import EnvelopeError, InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Delivery", "MessageFramer"]

#: What comes from a consumer: subject, reply, headers, payload.
Delivery = tuple[str, bytes, bytes | None, bytes]
#: How many subjects are remembered with what follows from them: wildcards can make them many.
_SUBJECTS: Final = 1_024
_ENVELOPE: Final = b"\xb9\x0e\x43\xb4"


class MessageFramer:
    """Makes gRPC messages of what a consumer of one partition delivers.

    An envelope gives its key, value and headers. Anything else is a value as it stands, also what only looks
    like an envelope.

    Args:
        stream: The Liftbridge stream.
        partition: The partition.

    Attributes:
        sequence: Sequence of the last message that was framed or passed over; 0 before the first.
        delivered: Its number among the consumer's deliveries.
        timestamp_ns: When it was stored.
        pending: How many the consumer had yet to deliver after it.
        count: How many messages were framed.
    """

    def __init__(self, stream: str, partition: int) -> None:
        self.sequence = 0
        self.delivered = 0
        self.timestamp_ns = 0
        self.pending = 0
        self.count = 0
        middle = bytearray()
        put_text(middle, w.MSG_STREAM, stream)
        put_varint_field(middle, w.MSG_PARTITION, partition)
        self._middle = bytes(middle)
        self._tails: dict[str, bytes] = {}

    def frame(self, messages: Sequence[Delivery], least: int, most: int) -> bytes:
        """Return gRPC messages for those of the deliveries whose sequences are within bounds.

        It ends after the message of the highest sequence that is wanted, or before one beyond it.

        Args:
            messages: What the consumer delivered, in order.
            least: The lowest sequence that is wanted.
            most: The highest; 0 for no limit.

        Raises:
            InternalError: The reply subject is none of JetStream's.
        """
        out = bytearray()
        for subject, reply, _, payload in messages:
            self._note(reply)
            if most and self.sequence > most:
                break
            if self.sequence >= least:
                body = self.body(subject, payload, self.sequence - 1, self.timestamp_ns)
                out += b"\0" + len(body).to_bytes(4, "big") + body
                self.count += 1
            if self.sequence == most:
                break
        return bytes(out)

    def body(self, subject: str, payload: bytes, offset: int, timestamp_ns: int) -> bytes:
        """Return one message, without the prefix that gRPC gives it."""
        key, value, headers = b"", payload, None
        if payload.startswith(_ENVELOPE):
            try:
                message = unmarshal_message(payload)
            except EnvelopeError:
                pass  # stored as it is, as Liftbridge does
            else:
                key, value, headers = message.key, message.value, message.headers
        out = bytearray()
        put_varint_field(out, w.MSG_OFFSET, offset)
        put_bytes(out, w.MSG_KEY, key)
        put_bytes(out, w.MSG_VALUE, value)
        put_varint_field(out, w.MSG_TIMESTAMP, timestamp_ns)
        if headers:
            put_headers(out, w.MSG_HEADERS, headers)
        out += self._tails.get(subject) or self._tail(subject)
        return bytes(out)

    def _note(self, reply: bytes) -> None:
        parts = reply.split(b".")
        # $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>, or with a domain and an
        # account before the stream.
        at = 5 if len(parts) == 9 else 7
        try:
            self.sequence, self.delivered = int(parts[at]), int(parts[at + 1])
            self.timestamp_ns, self.pending = int(parts[at + 2]), int(parts[at + 3])
        except (IndexError, ValueError) as exc:
            raise InternalError(f"a reply subject that is none of JetStream's: {reply!r}") from exc

    def _tail(self, subject: str) -> bytes:
        """What all messages on a subject have: where they are, and the headers that Liftbridge adds."""
        tail = bytearray(self._middle)
        put_text(tail, w.MSG_SUBJECT, subject)
        put_headers(tail, w.MSG_HEADERS, {"subject": subject.encode(), "reply": b""})
        if len(self._tails) >= _SUBJECTS:
            self._tails.clear()
        found = self._tails[subject] = bytes(tail)
        return found
