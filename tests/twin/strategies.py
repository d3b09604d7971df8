"""Bytes to try the decoders with: sound envelopes, broken ones, and those in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st

from liftenvelope._native.values import Ack, Message
from tests.twin.readable import env as slow

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

#: Readers of untrusted bytes: 400 examples in the gate, which repeats them, 8,000 new ones in `make soak`.
#: The fuzzing campaign gives both twins far more.
MANY = settings(max_examples=4 * settings().max_examples, deadline=None)

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]
)
INT32 = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, -1, 2, 127, 128, 2**31 - 1, -(2**31)])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=24) | st.text("ab", max_size=300)
BYTES = st.binary(max_size=40) | st.binary(min_size=126, max_size=130)
HEADERS = st.dictionaries(TEXT, BYTES, max_size=5)

MESSAGE_FIELDS: dict[str, SearchStrategy[Any]] = {
    "value": BYTES,
    "key": BYTES,
    "headers": HEADERS,
    "offset": INT64,
    "timestamp_ns": INT64,
    "stream": TEXT,
    "partition": INT32,
    "subject": TEXT,
    "reply_subject": TEXT,
    "ack_inbox": TEXT,
    "correlation_id": TEXT,
    "ack_policy": INT32,
}
ACK_FIELDS: dict[str, SearchStrategy[Any]] = {
    "stream": TEXT,
    "partition_subject": TEXT,
    "msg_subject": TEXT,
    "offset": INT64,
    "ack_inbox": TEXT,
    "correlation_id": TEXT,
    "ack_policy": INT32,
    "reception_timestamp_ns": INT64,
    "commit_timestamp_ns": INT64,
    "error": INT32,
}


def some_of(fields: dict[str, SearchStrategy[Any]]) -> SearchStrategy[dict[str, Any]]:
    """Arguments for a value: any combination of its fields."""
    return st.fixed_dictionaries({}, optional=fields)


MESSAGES = some_of(MESSAGE_FIELDS)
ACKS = some_of(ACK_FIELDS)

# Protobuf, field by field


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def overlong(number: int, extra: int) -> bytes:
    """The same number in more bytes than it needs."""
    short = varint(number)
    return short if not extra else short[:-1] + bytes((short[-1] | 0x80,)) + b"\x80" * (extra - 1) + b"\x00"


VARINTS = st.builds(
    overlong, st.integers(0, 2**64 - 1) | st.integers(0, 300), st.integers(0, 10) | st.just(0)
)
NUMBERS = st.integers(1, 13) | st.sampled_from([0, 100, 2**29 - 1, 2**29])


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


TAGS = st.builds(tag, NUMBERS, st.integers(0, 7))
#: The edges of what RFC 3629 allows, on both sides: chance would hardly ever find them.
EDGES = (
    *("7f", "c280", "dfbf", "e0a080", "ed9fbf", "ee8080", "efbfbf", "f0908080", "f48fbfbf"),
    *("80", "bf", "c080", "c1bf", "c2", "e08080", "e09fbf", "e0a0", "eda080", "edbfbf", "f0808080"),
    *("f08fbfbf", "f09f99", "f4908080", "f5808080", "ff"),
)
UTF8 = st.lists(st.sampled_from(EDGES).map(bytes.fromhex), max_size=3).map(b"".join)
RAW_TEXT = TEXT.map(str.encode) | BYTES | st.builds(lambda n, text: b"a" * n + text, st.integers(0, 9), UTF8)


def delimited(number: int, data: bytes, lie: int) -> bytes:
    """A length-delimited field; its length may be wrong by a little."""
    return tag(number, 2) + varint(max(0, len(data) + lie)) + data


LIES = st.just(0) | st.just(0) | st.just(0) | st.integers(-2, 2)
FIELDS = st.one_of(
    st.builds(lambda number, value: tag(number, 0) + value, NUMBERS, VARINTS),
    st.builds(delimited, NUMBERS, RAW_TEXT, LIES),
    st.builds(lambda number, data: tag(number, 1) + data, NUMBERS, st.binary(min_size=8, max_size=8)),
    # An overlong tag of bytes that could pass for the rest of a character of the text before it.
    st.builds(
        lambda text, value: tag(11, 2) + varint(len(text)) + text + b"\xa0\x81\x80\x00" + value, UTF8, VARINTS
    ),
    st.builds(lambda number, data: tag(number, 5) + data, NUMBERS, st.binary(min_size=4, max_size=4)),
)
ENTRIES = st.builds(
    delimited,
    st.just(9),
    st.lists(st.builds(delimited, st.integers(1, 3), RAW_TEXT, LIES) | FIELDS, max_size=4).map(b"".join),
    LIES,
)


def group(number: int, closing: int, content: bytes) -> bytes:
    return tag(number, 3) + content + tag(closing, 4)


def groups(fields: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    content = st.lists(fields, max_size=3).map(b"".join)
    closed = st.builds(lambda number, inside: group(number, number, inside), NUMBERS, content)
    return closed | closed | st.builds(group, NUMBERS, NUMBERS, content)


DEEP = st.integers(95, 105).map(lambda depth: tag(50, 3) * depth + tag(50, 4) * depth)
PARTS = st.one_of(FIELDS, FIELDS, ENTRIES, st.recursive(FIELDS, groups, max_leaves=4), TAGS, VARINTS, DEEP)
#: A payload that is made of protobuf's parts, sound ones for the most part.
PAYLOADS = st.lists(PARTS, max_size=8).map(b"".join)

# Envelopes


def envelope(kind: int, payload: bytes, crc: bool) -> bytes:
    head = bytes.fromhex("b90e43b400") + bytes((12 if crc else 8, crc, kind))
    return head + (slow.crc32c(payload).to_bytes(4, "big") if crc else b"") + payload


KINDS = st.sampled_from([0, 1])
SOUND = st.one_of(
    st.builds(lambda fields, crc: slow.marshal_message(Message(**fields), crc=crc), MESSAGES, st.booleans()),
    st.builds(lambda fields, crc: slow.marshal_ack(Ack(**fields), crc=crc), ACKS, st.booleans()),
)
BUILT = st.builds(envelope, KINDS, PAYLOADS, st.booleans())


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound envelope in which a few bytes were changed, put in, taken out or cut off."""
    data = bytearray(draw(SOUND))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["set", "put in", "take out", "cut", "repeat"]))
        if change == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif change == "put in":
            data[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif change == "take out":
            del data[at : at + draw(st.integers(1, 4))]
        elif change == "cut":
            del data[at:]
        else:
            data += data[at:]
    return resealed(bytes(data)) if draw(st.booleans()) else bytes(data)


def resealed(data: bytes) -> bytes:
    """With the checksum that fits, where there is one: else nothing behind it would be reached."""
    if len(data) < 12 or data[5] != 12 or not data[6] & 1:
        return data
    return data[:8] + slow.crc32c(data[12:]).to_bytes(4, "big") + data[12:]


@st.composite
def spliced(draw: st.DrawFn) -> bytes:
    """The beginning of one envelope and the end of another."""
    one, other = draw(SOUND), draw(SOUND | BUILT)
    joined = one[: draw(st.integers(8, len(one)))] + other[draw(st.integers(0, len(other))) :]
    return resealed(joined)


@st.composite
def broken_headers(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(SOUND))
    at = draw(st.integers(0, min(11, len(data) - 1)))
    data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, 16))]) if draw(st.booleans()) else bytes(data)


ANYTHING = st.one_of(
    SOUND, BUILT, BUILT, mutated(), mutated(), spliced(), broken_headers(), st.binary(max_size=64)
)
