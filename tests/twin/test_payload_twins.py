"""Bare messages: both twins, protobuf's own library, and whole batches, held to one another."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope import _wire as w
from liftenvelope import arrow
from liftenvelope._native import _fastbatch, values
from liftenvelope._native import _fastenv as fast
from liftenvelope._pb import api_pb2
from liftenvelope.errors import EnvelopeError, EnvelopeTooLargeError, LiftEnvelopeError
from tests.twin import readable
from tests.twin import strategies as make
from tests.twin.readable import env as slow

if TYPE_CHECKING:
    from collections.abc import Callable

TWINS = pytest.mark.parametrize("twin", [fast, slow], ids=["cython", "python"])

#: Headers among which those of the server come up.
STORED_HEADERS = st.dictionaries(
    st.sampled_from(["subject", "reply"]) | make.TEXT, make.BYTES, max_size=4
) | st.builds(lambda reply: {"subject": b"s", "reply": reply}, make.BYTES)
MESSAGES = make.some_of(make.MESSAGE_FIELDS | {"headers": STORED_HEADERS})
MESSAGE_PAYLOADS = MESSAGES.map(lambda fields: slow.marshal_message(values.Message(**fields))[8:])
ACK_PAYLOADS = make.ACKS.map(lambda fields: slow.marshal_ack(values.Ack(**fields))[8:])


def plain(value: Any) -> Any:
    """A value without the class of the twin that made it; types of the fields count."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    for name, fields in (("Message", values.MESSAGE_FIELDS), ("Ack", values.ACK_FIELDS)):
        if type(value).__name__ == name:
            return name, [plain(getattr(value, field)) for field in fields]
    if type(value).__name__ == "mappingproxy":
        return list(value.items())
    return type(value), value


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A value, or the class, text and offset of the error."""
    try:
        return plain(call(*args, **options))
    except LiftEnvelopeError as error:
        return type(error), error.args, str(error)


# Reading messages


@make.MANY
@given(st.lists(make.PAYLOADS | MESSAGE_PAYLOADS | st.binary(max_size=30), max_size=3), st.booleans())
def test_messages_are_read_alike(payloads: list[bytes], strip: bool) -> None:
    ours = outcome(fast.read_messages, payloads, strip_headers=strip)
    assert ours == outcome(slow.read_messages, payloads, strip_headers=strip)


@make.MANY
@given(make.PAYLOADS | MESSAGE_PAYLOADS)
def test_a_bare_message_is_that_of_an_envelope(payload: bytes) -> None:
    expected = read_in_envelope(payload)
    if isinstance(expected, EnvelopeError):
        assert expected.offset is not None
        with pytest.raises(EnvelopeError) as caught:
            fast.read_messages([payload])
        assert type(caught.value) is type(expected)
        assert caught.value.args == (f"message 0: {expected.args[0]}", expected.offset - w.HEADER_LEN)
        return
    assert fast.read_messages([payload], strip_headers=False) == [expected]
    stripped = fast.read_messages([payload])[0]
    left = [(name, value) for name, value in expected.headers.items() if name not in w.SERVER_HEADERS]
    assert list(stripped.headers.items()) == left


def read_in_envelope(payload: bytes) -> fast.Message | EnvelopeError:
    try:
        return fast.unmarshal_message(make.envelope(0, payload, False))
    except EnvelopeError as error:
        return error


def test_messages_without_headers_share_one_mapping() -> None:
    server_only = slow.marshal_message(values.Message(headers={"subject": b"s", "reply": b""}))[8:]
    one, other, third = fast.read_messages([server_only, b"", server_only])
    assert one.headers is other.headers is third.headers


@make.MANY
@given(MESSAGES)
def test_messages_of_protobuf(fields: dict[str, Any]) -> None:
    theirs = api_pb2.Message(**{camel(name): value for name, value in fields.items()})
    for twin, kinds in ((fast, fast), (slow, values)):
        read = twin.read_messages([theirs.SerializeToString()], strip_headers=False)
        assert read == [kinds.Message(**fields)]


# Reading responses


def camel(name: str) -> str:
    """Our name of a field as api.proto has it."""
    first, *rest = name.removesuffix("_ns").split("_")
    return "ackError" if name == "error" else first + "".join(map(str.capitalize, rest))


def part(number: int, inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(make.delimited, st.just(number), inside, make.LIES)


ERRORS = st.lists(
    st.builds(lambda code: make.tag(1, 0) + make.varint(code % 2**64), make.INT32)
    | st.builds(make.delimited, st.just(2), make.RAW_TEXT, make.LIES)
    | make.FIELDS,
    max_size=3,
).map(b"".join)
RESPONSE_PARTS = (
    part(1, ACK_PAYLOADS | make.PAYLOADS) | part(2, ERRORS) | part(3, make.RAW_TEXT) | make.FIELDS
)
RESPONSES = st.lists(RESPONSE_PARTS, max_size=5).map(b"".join)


@st.composite
def pb_responses(draw: st.DrawFn) -> api_pb2.PublishResponse:
    response = api_pb2.PublishResponse(correlationId=draw(st.just("") | make.TEXT))
    if draw(st.booleans()):
        fields = draw(make.ACKS)
        response.ack.CopyFrom(api_pb2.Ack(**{camel(name): value for name, value in fields.items()}))
    if draw(st.booleans()):
        code: Any = draw(make.INT32)
        response.asyncError.CopyFrom(api_pb2.PublishAsyncError(code=code, message=draw(make.TEXT)))
    return response


def in_our_terms(response: api_pb2.PublishResponse) -> tuple[str, dict[str, Any] | None, int, str]:
    ident = response.correlationId or response.ack.correlationId
    code = int(response.asyncError.code) if response.HasField("asyncError") else -1
    ack = {name: getattr(response.ack, camel(name)) for name in values.ACK_FIELDS}
    return ident, ack if response.HasField("ack") else None, code, response.asyncError.message


def ours_of(response: tuple[str, Any, int, str]) -> tuple[str, dict[str, Any] | None, int, str]:
    ident, ack, code, text = response
    fields = None if ack is None else {name: getattr(ack, name) for name in values.ACK_FIELDS}
    return ident, fields, code, text


@make.MANY
@given(st.lists(RESPONSES | st.binary(max_size=30), max_size=3))
@example([b"\x0a\x00\x12\x00"])
def test_responses_are_read_alike(payloads: list[bytes]) -> None:
    assert outcome(fast.read_publish_responses, payloads) == outcome(slow.read_publish_responses, payloads)


@make.MANY
@given(RESPONSES)
def test_what_protobuf_takes_as_well_is_the_same(payload: bytes) -> None:
    # Which payloads are judged differently, test_codec_protobuf.py lists.
    try:
        theirs, ours = api_pb2.PublishResponse.FromString(payload), fast.read_publish_responses([payload])
    except (DecodeError, EnvelopeError):
        return
    assert ours_of(ours[0]) == in_our_terms(theirs)


@TWINS
@make.MANY
@given(responses=st.lists(pb_responses(), min_size=1, max_size=3))
def test_responses_of_protobuf(twin: Any, responses: list[api_pb2.PublishResponse]) -> None:
    payloads = [response.SerializeToString() for response in responses]
    read = twin.read_publish_responses([*payloads, b"".join(payloads)])  # the last: one that comes in parts
    expected = [*responses, api_pb2.PublishResponse.FromString(b"".join(payloads))]
    assert [ours_of(response) for response in read] == [in_our_terms(response) for response in expected]


@make.MANY
@given(pb_responses())
def test_every_cut_of_a_response(response: api_pb2.PublishResponse) -> None:
    payload = response.SerializeToString()
    for size in range(len(payload)):
        ours = outcome(fast.read_publish_responses, [payload[:size]])
        assert ours == outcome(slow.read_publish_responses, [payload[:size]])
        try:
            theirs = api_pb2.PublishResponse.FromString(payload[:size])
        except DecodeError:
            assert issubclass(ours[0], EnvelopeError)
        else:
            assert ours_of(fast.read_publish_responses([payload[:size]])[0]) == in_our_terms(theirs)


# Writing requests

REQUEST: dict[str, st.SearchStrategy[Any]] = {
    "key": st.none() | make.BYTES,
    "partition": make.INT32,
    "ack_inbox": st.none() | make.TEXT,
    "correlation_id": st.none() | make.TEXT,
    "ack_policy": st.integers(0, 2),
    "expected_offset": make.INT64,
}


def pb_request(options: dict[str, Any]) -> api_pb2.PublishRequest:
    fields = {"expected_offset": -1} | options
    return api_pb2.PublishRequest(**{camel(name): value for name, value in fields.items()})


@TWINS
@make.MANY
@given(
    options=st.fixed_dictionaries(
        {"stream": make.TEXT, "value": make.BYTES},
        optional=REQUEST | {"headers": st.none() | st.dictionaries(make.TEXT, make.BYTES, max_size=1)},
    )
)
def test_requests_are_protobufs(twin: Any, options: dict[str, Any]) -> None:
    """With one header at most: of several upb's order is that of its hash table, ours the mapping's."""
    assert twin.publish_request(**options) == pb_request(options).SerializeToString(deterministic=True)


@make.MANY
@given(
    st.fixed_dictionaries(
        {"stream": make.TEXT, "value": make.BYTES, "headers": make.HEADERS}, optional=REQUEST
    )
)
def test_requests_with_any_headers(options: dict[str, Any]) -> None:
    made = fast.publish_request(**options)
    assert made == slow.publish_request(**options)
    assert made == fast.publish_request(**options | {"value": bytearray(options["value"])})
    theirs = pb_request(options)
    assert api_pb2.PublishRequest.FromString(made) == theirs
    assert len(made) == theirs.ByteSize()


ODD = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.binary(min_size=2, max_size=4).map(lambda data: memoryview(data)[::2]),
    st.dictionaries(
        st.text(max_size=2) | st.integers(), st.binary(max_size=2) | st.text(max_size=2), max_size=2
    ),
)


@make.MANY
@given(
    st.fixed_dictionaries({"stream": ODD, "value": ODD}, optional=dict.fromkeys([*REQUEST, "headers"], ODD))
)
def test_odd_arguments_are_refused_alike(options: dict[str, Any]) -> None:
    assert outcome(fast.publish_request, **options) == outcome(slow.publish_request, **options)


def test_two_gibibytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a request holds at most"
    # Pages that nobody touches.
    with (
        mmap.mmap(-1, 2**31 - 1) as area,
        memoryview(area) as view,
        pytest.raises(EnvelopeTooLargeError) as big,
    ):
        fast.publish_request("s", view)
    assert str(big.value) == f"{text} 2147483647 bytes"
    monkeypatch.setattr(w, "MAX_ENVELOPE", 100)
    with pytest.raises(EnvelopeTooLargeError, match=f"{text} 100 bytes"):
        slow.publish_request("s", bytes(90))
    assert len(slow.publish_request("s", bytes(84))) == 100


# Whole batches


def stored(module: Any, payloads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the batch or the error of stored_batch() on one of the twins."""
    with monkeypatch.context() as patch:
        patch.setattr(arrow, "batch", module)
        try:
            return arrow.stored_batch(payloads)
        except LiftEnvelopeError as error:
            return type(error), error.args, str(error)


def cells(message: fast.Message) -> dict[str, Any]:
    names = {"timestamp": "timestamp_ns"}
    row = {name: getattr(message, names.get(name, name)) for name in arrow.STORED_SCHEMA.names}
    return row | {"headers": list(message.headers.items())}


@make.MANY
@given(st.lists(MESSAGE_PAYLOADS, max_size=12) | st.lists(MESSAGE_PAYLOADS | make.PAYLOADS, max_size=4))
def test_a_batch_is_what_the_messages_are(payloads: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        ours, twins = (stored(module, payloads, monkeypatch) for module in (_fastbatch, readable.batch))
    assert ours == twins
    if isinstance(ours, tuple):
        assert ours == outcome(fast.read_messages, payloads)
        return
    for batch in (ours, twins):
        batch.validate(full=True)
        assert batch.schema == arrow.STORED_SCHEMA
        assert sum(column.null_count for column in batch.columns) == 0
    at = ours.schema.get_field_index("timestamp")
    numbers = ours.set_column(at, "timestamp", ours["timestamp"].cast(pa.int64()))
    assert numbers.to_pylist() == [cells(message) for message in fast.read_messages(payloads)]
