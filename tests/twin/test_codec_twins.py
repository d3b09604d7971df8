"""The Cython codec and its Python twin, held to one another. They fail where the extension is not built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope import envelope
from liftenvelope._native import _fastenv as fast
from liftenvelope._native import values
from liftenvelope.errors import EnvelopeError, LiftEnvelopeError
from tests.twin import strategies as make
from tests.twin.readable import env as slow

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(value: Any) -> Any:
    """A value without the class of the twin that made it; types of the fields count."""
    if isinstance(value, fast.Message | values.Message):
        return [(type(field), field) for field in (getattr(value, name) for name in values.MESSAGE_FIELDS)]
    if isinstance(value, fast.Ack | values.Ack):
        return [(type(field), field) for field in (getattr(value, name) for name in values.ACK_FIELDS)]
    return type(value), value


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A value, or the class, message and offset of the error; headers in their order."""
    try:
        value = call(*args, **options)
    except LiftEnvelopeError as error:
        return type(error), error.args, str(error)
    return plain(value), list(getattr(value, "headers", {}).items()), repr(value)


@make.MANY
@given(make.ANYTHING)
@example(b"")
@example(b"\xb9\x0e\x43\xb4\x00\x08\x00\x00")
@example(b"\xb9\x0e\x43\xb4\x00\x0c\x01\x00\x00\x00\x00\x00")
def test_any_bytes(data: bytes) -> None:
    for name in ("unmarshal_message", "unmarshal_ack", "peek_type", "is_envelope"):
        assert outcome(getattr(fast, name), data) == outcome(getattr(slow, name), data), name


@make.MANY
@given(make.PAYLOADS, st.sampled_from([0, 1]))
def test_any_payload(payload: bytes, kind: int) -> None:
    data = make.envelope(kind, payload, False)
    name = ("unmarshal_message", "unmarshal_ack")[kind]
    assert outcome(getattr(fast, name), data) == outcome(getattr(slow, name), data)


def ack_of(*fields: tuple[int, bytes], number: bytes = b"") -> bytes:
    """An ack of short text fields in any order and number."""
    body = b"".join(bytes((field << 3 | 2, len(text))) + text for field, text in fields)
    return b"\xb9\x0e\x43\xb4\x00\x08\x00\x01" + body + number


START = (1, b"s"), (2, b"s.a"), (3, b"s.a")
FIELDS = st.tuples(st.integers(1, 6), st.sampled_from([b"", b"s", b"s.a", b"\xc3\xa9", b"\xff", b"x" * 127]))
ACKS = st.builds(
    lambda start, more, number, cut: ack_of(*START[:start], *more, number=number)[:cut],
    st.integers(0, 3),
    st.lists(FIELDS, max_size=4),
    st.sampled_from([b"", b"\x20\x07", b"\x20", b"\x48" + b"\xff" * 8 + b"\x7f", b"\x48" + b"\xff" * 9]),
    st.integers(8, 80) | st.none(),
)


@make.MANY
@given(st.lists(ACKS, min_size=2, max_size=6))
@example([ack_of(*START)] * 2 + [ack_of(*START, (1, b"t")), ack_of(*START, (3, b"")), ack_of(*START)])
@example(
    [ack_of(*START)] * 2
    + [ack_of(*START[:2], (3, b"s.ab")), ack_of(*START)[:-1], ack_of(*START, (2, b"\xff"))]
)
@example([ack_of(*START), ack_of((1, b"t"), *START[1:]), ack_of(*START)])
def test_acks_that_begin_like_the_one_before(acks: list[bytes]) -> None:
    for data in acks:
        assert outcome(fast.unmarshal_ack, data) == outcome(slow.unmarshal_ack, data)


@make.MANY
@given(make.SOUND)
def test_every_cut(data: bytes) -> None:
    for size in range(len(data)):
        for name in ("unmarshal_message", "unmarshal_ack"):
            assert outcome(getattr(fast, name), data[:size]) == outcome(getattr(slow, name), data[:size])


@make.MANY
@given(make.MESSAGES, st.booleans())
def test_messages_are_written_alike(fields: dict[str, Any], crc: bool) -> None:
    written = fast.marshal_message(fast.Message(**fields), crc=crc)
    assert written == slow.marshal_message(values.Message(**fields), crc=crc)
    assert fast.unmarshal_message(written) == fast.Message(**fields)
    assert slow.unmarshal_message(written) == values.Message(**fields)


@make.MANY
@given(make.ACKS, st.booleans())
def test_acks_are_written_alike(fields: dict[str, Any], crc: bool) -> None:
    written = fast.marshal_ack(fast.Ack(**fields), crc=crc)
    assert written == slow.marshal_ack(values.Ack(**fields), crc=crc)
    assert fast.unmarshal_ack(written) == fast.Ack(**fields)
    assert slow.unmarshal_ack(written) == values.Ack(**fields)


NEW_MESSAGE: dict[str, st.SearchStrategy[Any]] = {
    "key": st.none() | make.BYTES | make.BYTES.map(bytearray),
    "headers": st.none() | make.HEADERS | st.dictionaries(make.TEXT, make.BYTES.map(bytearray), max_size=2),
    "ack_inbox": st.none() | make.TEXT,
    "correlation_id": st.none() | make.TEXT,
    "ack_policy": st.integers(0, 2),
    "expected_offset": make.INT64,
    "crc": st.booleans(),
}


@make.MANY
@given(st.fixed_dictionaries({"value": make.BYTES | make.BYTES.map(bytearray)}, optional=NEW_MESSAGE))
def test_new_messages_are_written_alike(options: dict[str, Any]) -> None:
    assert fast.new_message(**options) == slow.new_message(**options)


ODD = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.binary(min_size=2, max_size=4).map(lambda data: memoryview(data)[::2]),
    st.dictionaries(
        st.text(max_size=2) | st.integers(), st.binary(max_size=2) | st.text(max_size=2), max_size=2
    ),
    st.lists(st.integers(), max_size=2),
)
OPTIONS = ("value", "key", "headers", "ack_inbox", "correlation_id", "ack_policy", "expected_offset")


@make.MANY
@given(st.fixed_dictionaries({"value": ODD}, optional=dict.fromkeys(OPTIONS[1:], ODD)))
def test_odd_arguments_are_refused_alike(options: dict[str, Any]) -> None:
    assert outcome(fast.new_message, **options) == outcome(slow.new_message, **options)


@make.MANY
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(values.MESSAGE_FIELDS, ODD)))
def test_odd_fields_of_a_message_are_refused_alike(fields: dict[str, Any]) -> None:
    assert outcome(fast.Message, **fields) == outcome(values.Message, **fields)


@make.MANY
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(values.ACK_FIELDS, ODD)))
def test_odd_fields_of_an_ack_are_refused_alike(fields: dict[str, Any]) -> None:
    assert outcome(fast.Ack, **fields) == outcome(values.Ack, **fields)


@make.MANY
@given(make.MESSAGES, make.MESSAGES)
def test_values_behave_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (fast.Message(**one) == fast.Message(**other)) is (
        values.Message(**one) == values.Message(**other)
    )
    assert hash(fast.Message(**one)) == hash(values.Message(**one))
    assert repr(fast.Message(**one)) == repr(values.Message(**one))
    assert fast.Message(**one).timestamp == values.Message(**one).timestamp
    assert fast.Message(**one).__reduce__() == values.Message(**one).__reduce__()
    assert (fast.Message(**one) == values.Message(**one)) is False


@make.MANY
@given(make.ACKS)
def test_acks_behave_alike(fields: dict[str, Any]) -> None:
    one, other = fast.Ack(**fields), values.Ack(**fields)
    assert (hash(one), repr(one), one.__reduce__()) == (hash(other), repr(other), other.__reduce__())
    assert one.reception_timestamp == other.reception_timestamp
    assert one.commit_timestamp == other.commit_timestamp
    assert outcome(one.raise_for_error)[0] == outcome(other.raise_for_error)[0]


@make.MANY
@given(st.binary(max_size=100))
def test_checksums(data: bytes) -> None:
    expected = slow.crc32c(data)
    assert fast._crc32c_by(data, native=False) == expected
    if fast._crc32c_is_native():
        assert fast._crc32c_by(data, native=True) == expected


@pytest.mark.parametrize("start", range(8))
def test_checksums_at_any_alignment(start: int) -> None:
    data = bytes(range(256)) * 2
    for size in range(40):
        part = memoryview(data)[start : start + size]
        assert fast._crc32c_by(part, native=False) == slow.crc32c(part)


@pytest.mark.parametrize("native", [False, fast._crc32c_is_native()])
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A91_36AA),
        (b"\xff" * 32, 0x62A8_AB43),
        (bytes(range(32)), 0x46DD_794E),
        (bytes(range(31, -1, -1)), 0x113F_DB5C),
        (b"123456789", 0xE306_9283),
        (b"", 0),
    ],
)
def test_checksum_vectors_of_rfc_3720(data: bytes, crc: int, native: bool) -> None:
    assert fast._crc32c_by(data, native=native) == crc


@pytest.mark.parametrize("name", [name for name in envelope.__all__ if name.islower()])
def test_functions_have_the_docstrings_of_the_twin(name: str) -> None:
    assert getattr(fast, name).__doc__ == getattr(slow, name).__doc__


def test_what_is_made_here_is_of_this_twin() -> None:
    with pytest.raises(EnvelopeError):
        fast.unmarshal_message(b"")
    assert type(fast.unmarshal_message(slow.new_message(b"x"))) is fast.Message
    assert type(slow.unmarshal_message(fast.new_message(b"x"))) is values.Message
