"""The public codec as its users' type checkers see it. Checked by mypy --strict, and run, by test_typing.py.

What must not pass stands with its ``type: ignore``: --strict complains of those that are not needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, assert_type

from liftenvelope.envelope import (
    Ack,
    AckError,
    AckPolicy,
    Message,
    MessageType,
    NewMessage,
    UnmarshalAck,
    UnmarshalMessage,
    is_envelope,
    marshal_ack,
    marshal_message,
    new_message,
    peek_type,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import EnvelopeError, IncorrectOffsetError, PublishError, ServerError, UsageError


def encode() -> bytes:
    options: dict[str, bytes] = {"unit": b"C"}
    assert_type(new_message(b"v"), bytes)
    assert_type(NewMessage(bytearray(b"v"), key=memoryview(b"k")), bytes)
    new_message(array("d", [1.0]), headers={"a": bytearray(b"b")})
    new_message(b"v", key=None, headers=None, ack_inbox=None, correlation_id=None)
    new_message(b"v", ack_policy=2, expected_offset=True, crc=True)
    return new_message(
        b"v",
        key=b"k",
        headers=options,
        ack_inbox="i",
        correlation_id="c",
        ack_policy=AckPolicy.ALL,
        expected_offset=7,
        crc=False,
    )


def decode(data: bytes) -> Message:
    assert_type(is_envelope(data), bool)
    assert_type(peek_type(memoryview(data)), MessageType)
    message = UnmarshalMessage(bytearray(data))
    assert_type(message, Message)
    assert_type((message.value, message.key), tuple[bytes, bytes])
    assert_type(message.headers, Mapping[str, bytes])
    assert_type((message.offset, message.timestamp_ns, message.partition), tuple[int, int, int])
    assert_type(message.timestamp, datetime | None)
    assert_type((message.stream, message.subject, message.reply_subject), tuple[str, str, str])
    assert_type((message.ack_inbox, message.correlation_id), tuple[str, str])
    assert_type(message.ack_policy, AckPolicy)
    assert_type(marshal_message(message, crc=True), bytes)
    return unmarshal_message(data)


def acks(ack: Ack) -> Ack:
    assert_type((ack.stream, ack.partition_subject, ack.msg_subject), tuple[str, str, str])
    assert_type((ack.offset, ack.reception_timestamp_ns, ack.commit_timestamp_ns), tuple[int, int, int])
    assert_type((ack.reception_timestamp, ack.commit_timestamp), tuple[datetime | None, datetime | None])
    assert_type((ack.error, ack.ack_policy), tuple[AckError, AckPolicy])
    assert_type(UnmarshalAck(marshal_ack(ack)), Ack)
    return unmarshal_ack(marshal_ack(ack, crc=True))


def errors(ack: Ack) -> None:
    try:
        ack.raise_for_error()
    except IncorrectOffsetError as error:
        assert_type(error.ack, Ack | None)
    except PublishError as error:
        assert_type((error.code, error.description), tuple[int, str])
        wide: ServerError = error
        assert_type(wide.retriable, bool)
    try:
        unmarshal_message(b"")
    except EnvelopeError as broken:
        assert_type(broken.offset, int | None)
        value_error: ValueError = broken
        assert str(value_error)
    wrong: type[ValueError] = UsageError
    assert wrong.__name__ == "UsageError"


if TYPE_CHECKING:

    def mistakes(message: Message, ack: Ack) -> None:
        new_message("text")  # type: ignore[arg-type]
        new_message(b"v", b"k")  # type: ignore[call-arg]
        new_message(b"v", key="text")  # type: ignore[arg-type]
        new_message(b"v", headers={"a": "text"})  # type: ignore[dict-item]
        new_message(b"v", headers=[("a", b"b")])  # type: ignore[arg-type]
        new_message(b"v", ack_policy="ALL")  # type: ignore[arg-type]
        new_message(b"v", offset=1)  # type: ignore[call-arg]
        marshal_message(ack)  # type: ignore[arg-type]
        marshal_ack(message)  # type: ignore[arg-type]
        unmarshal_ack("text")  # type: ignore[arg-type]
        message.key = b"k"  # type: ignore[misc]
        ack.error = AckError.OK  # type: ignore[misc]
        message.headers["a"] = b"b"  # type: ignore[index]
        Ack("stream")  # type: ignore[call-arg]

        class Sub(Message):  # type: ignore[misc]
            pass


def main() -> None:
    """Run the checked code."""
    assert decode(encode()).headers == {"unit": b"C"}
    assert acks(Ack(stream="s", offset=1)) == Ack(stream="s", offset=1)
    for code in (0, 1, 2, 99):
        errors(Ack(error=code))


if __name__ == "__main__":
    main()
