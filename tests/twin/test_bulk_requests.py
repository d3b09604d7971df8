"""Both twins make the same requests of rows, and the same of the answers, however these are divided."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastbatch, _fastbulk
from liftenvelope._pb import api_pb2
from liftenvelope.errors import EnvelopeTooLargeError, LiftEnvelopeError, UsageError
from tests.sinks import spans
from tests.twin import readable

BATCH_TWINS = pytest.mark.parametrize("twin", [readable.batch, _fastbatch], ids=["python", "cython"])
BULK_TWINS = pytest.mark.parametrize("twin", [readable.bulk, _fastbulk], ids=["python", "cython"])
STREAM, IDENT = b"orders", b"a-Z."

keys = st.none() | st.binary(max_size=5)
values = st.binary(max_size=20) | st.integers(120, 300).map(lambda n: b"v" * n)
names = st.sampled_from(["a", "é", "subject", "reply", "b" * 130])
headers = st.none() | st.dictionaries(names, st.binary(max_size=4), max_size=3)
offsets = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(st.tuples(st.none() | values, keys, headers, st.integers(0, 2**31 - 1), offsets), max_size=6)


def requests(
    twin: ModuleType,
    rows: list[Any],
    *,
    with_keys: bool = True,
    with_headers: bool = True,
    with_offsets: bool = False,
) -> Any:
    return twin.Requests(
        STREAM,
        twin.Column.of_sequence([row[0] for row in rows], "values", False),
        twin.Column.of_sequence([row[1] for row in rows], "keys", False) if with_keys else None,
        twin.HeaderColumn.of_sequence([row[2] for row in rows]) if with_headers else None,
        struct.pack(f"={len(rows)}i", *(row[3] for row in rows)),
        2,
        IDENT,
        struct.pack(f"={len(rows)}q", *(row[4] for row in rows)) if with_offsets else None,
    )


def all_frames(made: Any, number: int, limit: int, longest: int) -> list[tuple[int, bytes]]:
    """The rows in spans, up to one that is too long."""
    found, at = [], 0
    while at < made.length:
        stop, frames = made.frames(at, made.length, number + at, limit, longest)
        found.append((stop, frames))
        if stop == at:
            break
        at = stop
    return found


@given(
    rows,
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 10**18),
    st.integers(0, 600),
    st.integers(30, 400),
)
def test_requests(
    rows: list[Any], given: tuple[bool, bool, bool], number: int, limit: int, longest: int
) -> None:
    def run(twin: ModuleType) -> Any:
        try:
            with_keys, with_headers, with_offsets = given
            made = requests(
                twin, rows, with_keys=with_keys, with_headers=with_headers, with_offsets=with_offsets
            )
        except LiftEnvelopeError as exc:
            return type(exc), str(exc)
        return made.length, made.nbytes, all_frames(made, number, limit, longest)

    assert run(_fastbatch) == run(readable.batch)


@BATCH_TWINS
class TestRequests:
    def test_requests_are_what_protobuf_makes(self, twin: ModuleType) -> None:
        made = requests(twin, [(b"one", b"k", {"h": b"x"}, 3), (b"", None, None, 0)])
        stop, frames = made.frames(0, 2, 9, 10_000, 10_000)
        assert stop == 2
        found = []
        while frames:
            size = int.from_bytes(frames[1:5], "big")
            assert frames[0] == 0
            found.append(api_pb2.PublishRequest.FromString(frames[5 : 5 + size]))
            frames = frames[5 + size :]
        shared: Any = {"stream": "orders", "ackPolicy": 2, "expectedOffset": -1}
        assert found == [
            api_pb2.PublishRequest(
                value=b"one", key=b"k", headers={"h": b"x"}, partition=3, correlationId="a-Z.9", **shared
            ),
            api_pb2.PublishRequest(correlationId="a-Z.10", **shared),
        ]

    def test_each_row_expects_its_own_offset(self, twin: ModuleType) -> None:
        wanted = [0, 7, 2**62, -1]
        made = requests(twin, [(b"v", None, None, 0, offset) for offset in wanted], with_offsets=True)
        found = []
        for i in range(len(wanted)):
            _, frame = made.frames(i, i + 1, i, 1_000, 1_000)
            found.append(api_pb2.PublishRequest.FromString(frame[5:]).expectedOffset)
        assert found == wanted

    def test_a_span_has_one_row_at_least(self, twin: ModuleType) -> None:
        made = requests(twin, [(b"x" * 50, None, None, 0)] * 3)
        assert [stop for stop, _ in all_frames(made, 0, 1, 1000)] == [1, 2, 3]
        assert [stop for stop, _ in all_frames(made, 0, 1, 50)] == [0]

    @pytest.mark.parametrize(
        ("row", "what"),
        [
            ((None, None, None, 0), "row 1 must have a value, got null"),
            ((b"", None, {"subject": b""}, 0), "row 1: headers must not have the name 'subject'"),
            ((b"", None, {"reply": b""}, 0), "row 1: headers must not have the name 'reply'"),
        ],
    )
    def test_rows_that_cannot_be_published(self, twin: ModuleType, row: Any, what: str) -> None:
        with pytest.raises(UsageError, match=what):
            requests(twin, [(b"", None, None, 0), row])

    def test_a_header_that_kills_the_server(self, twin: ModuleType) -> None:
        with pytest.raises(EnvelopeTooLargeError, match="header name"):
            requests(twin, [(b"", None, {"x" * 32_768: b""}, 0)])

    def test_partitions_that_the_caller_changes_later_are_those_of_the_call(self, twin: ModuleType) -> None:
        partitions = bytearray(struct.pack("=2i", 0, 0))
        column = twin.Column.of_sequence([b"a", b"b"], "values", False)
        made = twin.Requests(STREAM, column, None, None, partitions, 1, IDENT)
        frames = made.frames(0, 2, 0, 1000, 1000)
        partitions[:] = struct.pack("=2i", -1, -1)  # ten bytes more in each request
        assert made.frames(0, 2, 0, 1000, 1000) == frames

    def test_lengths_and_spans_are_checked(self, twin: ModuleType) -> None:
        column = twin.Column.of_sequence([b"a", b"b"], "values", False)
        with pytest.raises(UsageError, match="partitions has 1 rows, values 2"):
            twin.Requests(STREAM, column, None, None, b"\0" * 4, 1, IDENT)
        with pytest.raises(UsageError, match="keys has 0 rows, values 2"):
            twin.Requests(STREAM, column, twin.Column.same(b"", 0), None, b"\0" * 8, 1, IDENT)
        with pytest.raises(UsageError, match="expected has 1 rows, values 2"):
            twin.Requests(STREAM, column, None, None, b"\0" * 8, 1, IDENT, b"\0" * 8)
        made = twin.Requests(STREAM, column, None, None, b"\0" * 8, 1, IDENT)
        for start, stop, number in ((0, 3, 0), (2, 1, 0), (-1, 1, 0), (0, 1, -1)):
            with pytest.raises(UsageError, match="are not a span of 2 rows"):
                made.frames(start, stop, number, 10, 10)


def answer(number: object, *, offset: int = 0, stream: str = "orders", **fields: Any) -> bytes:
    ident = f"a-Z.{number}" if isinstance(number, int) else str(number)
    ack = api_pb2.Ack(stream=stream, offset=offset, correlationId=ident, **fields)
    return framed(api_pb2.PublishResponse(ack=ack, correlationId=ident).SerializeToString())


def refusal(number: int) -> bytes:
    error = api_pb2.PublishAsyncError(code=api_pb2.PublishAsyncError.READONLY, message="no")
    # The server sets both.
    both = api_pb2.PublishResponse(ack=api_pb2.Ack(), asyncError=error, correlationId=f"a-Z.{number}")
    return framed(both.SerializeToString())


def framed(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def state(acks: Any) -> Any:
    return acks.next, acks.oldest, acks.acked, acks.pending, acks.room, acks.offsets(), acks.inside_message


def make(twin: Any, *, window: int = 5, partitions: int = 3) -> Any:
    return twin.PublishAcks(STREAM, IDENT, window, partitions, 500, bytearray)


answers = st.one_of(
    st.builds(answer, st.integers(0, 9), offset=st.integers(0, 30)),
    st.builds(answer, st.integers(0, 9), ackError=st.integers(0, 3)),
    st.builds(answer, st.integers(0, 9), stream=st.just("other")),
    st.builds(answer, st.sampled_from(["", "a-Z.", "a-Z.x", "a-Z.-1", "a-Z.99999999999999999999", "7"])),
    st.builds(refusal, st.integers(0, 9)),
    st.just(framed(b"")),
    st.binary(max_size=9),
)
acks_steps = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.lists(st.integers(-1, 3), max_size=6)),
        st.tuples(st.just("feed"), st.lists(answers, max_size=4).map(b"".join)),
    ),
    max_size=12,
)


def run_acks(twin: Any, steps: list[tuple[str, Any]], cuts: list[int]) -> list[Any]:
    acks, log = make(twin), list[Any]()
    for what, argument in steps:
        if what == "sent":
            try:
                acks.sent(struct.pack(f"={len(argument)}i", *argument), 0, len(argument))
            except UsageError as exc:
                log.append(str(exc))
        else:
            start = 0
            for end in [*sorted({cut for cut in cuts if cut < len(argument)}), len(argument)]:
                acks.put(argument, spans(start, end))
                if acks.state != twin.MORE:
                    return [*log, acks.state, acks.bad, acks.acked]
                start = end
        log += [state(acks), acks.refused()]
    return log


@given(acks_steps, st.lists(st.integers(0, 150), max_size=5))
def test_acks(steps: list[tuple[str, Any]], cuts: list[int]) -> None:
    assert run_acks(_fastbulk, steps, cuts) == run_acks(readable.bulk, steps, cuts)


@BULK_TWINS
class TestPublishAcks:
    def test_acks_settle_requests_once_each(self, twin: Any) -> None:
        acks = make(twin)
        acks.sent(struct.pack("=3i", 2, 0, 2), 0, 3)
        data = answer(2, offset=8) + answer(0, offset=7) + answer(0, offset=1) + answer(9)
        acks.put(data, spans(0, len(data)))
        assert acks.state == twin.MORE
        assert state(acks) == (3, 1, 2, 1, 3, {2: (7, 8)}, False)

    def test_the_window_is_kept(self, twin: Any) -> None:
        acks = make(twin, window=3, partitions=1)
        acks.sent(bytes(12), 0, 3)
        with pytest.raises(UsageError, match="that there is room for"):
            acks.sent(bytes(4), 0, 1)
        data = answer(1) + answer(2)
        acks.put(data, spans(0, len(data)))
        assert acks.room == 0  # the oldest has no answer
        acks.put(answer(0), spans(0, len(answer(0))))
        assert acks.room == 3

    def test_refusals_are_handed_out_once(self, twin: Any) -> None:
        acks = make(twin)
        acks.sent(bytes(8), 0, 2)
        data = refusal(1) + answer(0, ackError=api_pb2.Ack.TOO_LARGE)
        acks.put(data, spans(0, len(data)))
        assert [number for number, _ in acks.refused()] == [1, 0]
        assert acks.refused() == []
        assert (acks.acked, acks.pending) == (0, 0)

    def test_what_is_no_answer(self, twin: Any) -> None:
        acks = make(twin)
        acks.put(framed(b"\xff"), spans(0, 6))
        assert acks.state == twin.BROKEN
        assert acks.bad == b"\xff"

    @pytest.mark.parametrize(("window", "partitions"), [(0, 1), (1, 0)])
    def test_a_window_has_room(self, twin: Any, window: int, partitions: int) -> None:
        with pytest.raises(UsageError, match="a window of"):
            make(twin, window=window, partitions=partitions)
