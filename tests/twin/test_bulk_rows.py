"""Both twins make the same columns of the same bytes, however these are divided."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastbulk
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import new_message
from liftenvelope.errors import UsageError
from tests.sinks import spans
from tests.twin import readable

ALL = frozenset({"offset", "timestamp", "key", "value", "headers", "subject", "ack_policy"})
STATES = ("MORE", "FULL", "LINE", "DONE", "LOST", "BROKEN")
SID = 7


def test_the_states_have_the_same_numbers() -> None:
    for name in STATES:
        assert getattr(readable.bulk, name) == getattr(_fastbulk, name)


def plain(columns: dict[str, Any], rows: int) -> dict[str, Any]:
    """Columns as Python values: buffers may be longer than what counts in them."""
    found: dict[str, Any] = {}
    for name, buffers in columns.items():
        if name in ("offset", "timestamp", "expected_offset"):
            found[name] = struct.unpack_from(f"={rows}q", buffers)
        elif name == "ack_policy":
            found[name] = struct.unpack_from(f"={rows}i", buffers)
        elif name == "header_offsets":
            found[name] = struct.unpack_from(f"={rows + 1}i", buffers)
        elif name == "enveloped":
            found[name] = buffers[0], valid(buffers[1], rows)
        elif len(buffers) == 5 and isinstance(buffers[4], tuple):
            found[name] = repeats(buffers)
        else:
            found[name] = texts(buffers)
    return found


def valid(bits: Any, rows: int) -> list[bool]:
    return [bits is None or bool(bytes(bits)[i >> 3] >> (i & 7) & 1) for i in range(rows)]


def texts(buffers: tuple[Any, ...]) -> list[bytes | None]:
    rows, nulls, validity, offsets, data = buffers
    ends, raw = struct.unpack_from(f"={rows + 1}i", offsets), bytes(data)
    known = valid(validity, rows)
    assert known.count(False) == nulls
    return [raw[ends[i] : ends[i + 1]] if known[i] else None for i in range(rows)]


def repeats(buffers: tuple[Any, ...]) -> list[bytes | None]:
    rows, nulls, validity, indices, items = buffers
    different, which, known = texts(items), struct.unpack_from(f"={rows}i", indices), valid(validity, rows)
    assert len(set(different)) == len(different)
    assert known.count(False) == nulls
    return [different[which[i]] if known[i] else None for i in range(rows)]


def run_nats(twin: Any, data: bytes, cuts: list[int], mode: int, limits: tuple[int, int], stop: int) -> Any:
    reader = twin.NatsRows(ALL, mode, *limits, 1_000_000, bytearray)
    reader.follow(SID, 0, stop)
    log: list[Any] = []
    start = 0
    for end in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
        while True:
            state, start = reader.feed(data, start, end)
            log.append(
                (
                    state,
                    start,
                    reader.next_offset,
                    reader.pending,
                    reader.stored_ns,
                    reader.rows,
                    reader.nbytes,
                )
            )
            if state == twin.FULL:
                log.append(taken(reader))
            elif state == twin.LINE:
                log.append(reader.line)
                start = reader.line[1]
            elif state == twin.MORE:
                assert reader.need == 0 or reader.need > end - start
                log.append(reader.need)
                break
            else:
                return [*log, taken(reader)]
    return [*log, taken(reader)]


def taken(reader: Any) -> Any:
    rows, first, last, gaps, columns = reader.take()
    return rows, first, last, gaps, plain(columns, rows)


def msg(subject: bytes, sid: int, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    words = [subject, b"%d" % sid, *([reply] if reply else [])]
    if headers:
        sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
        return b"HMSG %b %b\r\n%b%b\r\n" % (b" ".join(words), sizes, headers, payload)
    return b"MSG %b %d\r\n%b\r\n" % (b" ".join(words), len(payload), payload)


def ack(sequence: int, delivery: int, *, pending: int = 5, domain: bool = False, tail: bytes = b"") -> bytes:
    place = b"hub.ACCOUNT." if domain else b""
    return b"$JS.ACK.%bs.c.1.%d.%d.1700000000000000000.%d%b" % (place, sequence, delivery, pending, tail)


names = st.binary(max_size=6).map(lambda name: name.translate(None, b"\r\n"))
header_blocks = st.lists(st.tuples(names, names), max_size=12).map(
    lambda pairs: b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n"
)
envelopes = st.builds(
    lambda value, key, inbox, ident, crc: new_message(
        value, key=key, ack_inbox=inbox, correlation_id=ident, headers={"a": b"1", "b": key}, crc=crc
    ),
    st.binary(max_size=20),
    st.binary(max_size=5),
    st.sampled_from(["", "in.box"]),
    st.sampled_from(["", "x", "y"]),
    st.booleans(),
)
payloads = st.one_of(st.binary(max_size=30), envelopes)
subjects = st.sampled_from([b"a", b"a.b", b"orders.1", b"\xff\xfe", "é".encode()])
others = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'no'\r\n",
        b'INFO {"a":1}\r\n',
        msg(b"inbox.1", SID, b"", b"NATS/1.0 409 Batch Completed\r\n\r\n", b""),
        msg(b"a", 3, ack(1, 1), b"", b"not ours"),
        msg(b"a", SID, b"some.reply", b"", b"no ack"),
    ]
)


@st.composite
def nats_streams(draw: st.DrawFn) -> bytes:
    out, sequence = b"", 0
    for delivery in range(1, draw(st.integers(1, 12))):
        sequence += draw(st.sampled_from([1, 1, 1, 2, 5]))
        reply = ack(sequence, delivery, domain=draw(st.booleans()), pending=draw(st.integers(0, 3)))
        headers = draw(st.one_of(st.just(b""), header_blocks))
        out += msg(draw(subjects), SID, reply, headers, draw(payloads))
        out += draw(st.one_of(st.just(b""), others))
    return out


cut_lists = st.lists(st.integers(0, 400), max_size=8)
limits = st.tuples(st.integers(1, 5), st.integers(1, 100))


@given(nats_streams(), cut_lists, st.integers(0, 2), limits, st.sampled_from([-1, 0, 3, 8, 1000]))
def test_nats_messages(data: bytes, cuts: list[int], mode: int, limits: tuple[int, int], stop: int) -> None:
    assert run_nats(_fastbulk, data, cuts, mode, limits, stop) == run_nats(
        readable.bulk, data, cuts, mode, limits, stop
    )


@given(nats_streams(), st.data())
def test_spoilt_nats_messages(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, max(len(data) - 1, 0)))
    spoilt = data[:at] + draw.draw(st.binary(max_size=4)) + data[at + draw.draw(st.integers(0, 3)) :]
    assert run_nats(_fastbulk, spoilt, [], 1, (100, 10_000), -1) == run_nats(
        readable.bulk, spoilt, [], 1, (100, 10_000), -1
    )


@pytest.mark.parametrize(
    "reply",
    [
        ack(1, 1),
        ack(1, 1, domain=True),
        ack(1, 1, domain=True, tail=b".x7Rt"),
        ack(1, 1, tail=b".x"),
        ack(0, 1),
        ack(2**63 - 1, 1),
        ack(2**63, 1),
        ack(10**19, 1),
        b"$JS.ACK.s.c.1.2.3",
        b"$JS.ACK.s.c.x.2.1.4.5",
        b"$JS.ACK.s.c.1..1.4.5",
        b"$JS.ACK........",
    ],
)
@pytest.mark.parametrize("twin", [readable.bulk, _fastbulk], ids=["python", "cython"])
def test_ack_subjects(twin: Any, reply: bytes) -> None:
    data = msg(b"a", SID, reply, b"", b"x")
    assert run_nats(twin, data, [], 0, (9, 99), -1) == run_nats(readable.bulk, data, [], 0, (9, 99), -1)


@pytest.mark.parametrize("twin", [readable.bulk, _fastbulk], ids=["python", "cython"])
@pytest.mark.parametrize(
    ("reply", "taken"),
    [
        (ack(2, 2), True),
        (ack(2, 2, tail=b".x"), False),
        (ack(2, 2, tail=b".x.y"), False),
        (b"$JS.ACK.s.c.1.2", False),
        (b"$JS.ACK.s.c.S.C.1.2.2.17.0", True),  # a domain and an account look like the stream and consumer
    ],
)
def test_ack_subjects_that_begin_as_the_one_before(twin: Any, reply: bytes, taken: bool) -> None:
    data = msg(b"a", SID, ack(1, 1), b"", b"x") + msg(b"a", SID, reply, b"", b"y")
    log = run_nats(twin, data, [], 0, (9, 99), -1)
    assert log == run_nats(readable.bulk, data, [], 0, (9, 99), -1)
    assert log[-1][0] == 1 + taken


@pytest.mark.parametrize("twin", [readable.bulk, _fastbulk], ids=["python", "cython"])
class TestNatsRows:
    def test_what_a_row_has(self, twin: Any) -> None:
        headers = b"NATS/1.0\r\nA: 1\r\nB:two \r\nA:3\r\nno colon\r\n\r\n"
        log = run_nats(twin, msg(b"orders", SID, ack(4, 1), headers, b"hello"), [], 0, (9, 999), -1)
        rows, first, last, gaps, columns = log[-1]
        assert (rows, first, last, gaps) == (1, 3, 3, [(0, 3)])
        assert columns == {
            "offset": (3,),
            "timestamp": (1_700_000_000_000_000_000,),
            "key": [None],
            "value": [b"hello"],
            "header_offsets": (0, 2),
            "header_names": [b"A", b"B"],
            "header_values": [b"3", b"two"],
            "subject": [b"orders"],
            "ack_inbox": [None],
            "correlation_id": [None],
            "ack_policy": (0,),
            "expected_offset": (0,),
            "enveloped": (1, [False]),
        }

    def test_an_envelope_is_opened(self, twin: Any) -> None:
        payload = new_message(b"v", key=b"k", headers={"B": b"2"}, ack_inbox="in", correlation_id="id")
        data = msg(b"orders", SID, ack(1, 1), b"NATS/1.0\r\nA: 1\r\nB: 1\r\n\r\n", payload)
        columns = run_nats(twin, data, [], 1, (9, 999), -1)[-1][4]
        assert columns["key"] == [b"k"]
        assert columns["value"] == [b"v"]
        assert dict(zip(columns["header_names"], columns["header_values"], strict=True)) == {
            b"A": b"1",
            b"B": b"2",
        }
        assert columns["ack_inbox"] == [b"in"]
        assert columns["enveloped"] == (0, [True])

    def test_a_message_that_was_left_out_is_noticed(self, twin: Any) -> None:
        data = msg(b"a", SID, ack(1, 1), b"", b"x") + msg(b"a", SID, ack(3, 3), b"", b"x")
        log = run_nats(twin, data, [], 0, (9, 999), -1)
        assert log[-2][0] == twin.LOST
        assert log[-1][0] == 1

    def test_a_message_before_the_next_offset_is_none_of_ours(self, twin: Any) -> None:
        reader = twin.NatsRows(ALL, 0, 9, 999, 999, bytearray)
        reader.follow(SID, 5, -1)
        data = msg(b"a", SID, ack(5, 1), b"", b"x")
        assert reader.feed(data, 0, len(data)) == (twin.LOST, 0)

    def test_rows_end_at_the_given_offset(self, twin: Any) -> None:
        data = b"".join(msg(b"a", SID, ack(i, i), b"", b"x") for i in range(1, 5))
        log = run_nats(twin, data, [], 0, (9, 999), 2)
        assert log[-2][0] == twin.DONE
        assert log[-1][:4] == (2, 0, 1, [])

    def test_a_hole_at_the_end_is_a_gap(self, twin: Any) -> None:
        data = msg(b"a", SID, ack(1, 1), b"", b"x") + msg(b"a", SID, ack(9, 2), b"", b"x")
        assert run_nats(twin, data, [], 0, (9, 999), 4)[-1][3] == [(1, 4)]

    def test_words_stand_between_any_number_of_blanks(self, twin: Any) -> None:
        whole = msg(b"a", SID, ack(1, 1), b"", b"x")
        line, end, rest = whole.partition(b"\r\n")
        wide = line.replace(b" ", b"   ") + end + rest
        found = run_nats(twin, wide, [], 0, (9, 999), -1)[-1]
        assert found == run_nats(twin, whole, [], 0, (9, 999), -1)[-1]
        assert found[0] == 1

    @pytest.mark.parametrize(
        "data",
        [b"HTTP/1.1 400 Bad\r\n", b"PING\n", b"MSG a 7 2000000\r\n", b"HMSG a 7 9 3\r\n", b"x" * 70_000],
    )
    def test_what_a_server_never_says(self, twin: Any, data: bytes) -> None:
        assert run_nats(twin, data, [], 0, (9, 999), -1)[-2][0] == twin.BROKEN

    def test_only_the_columns_that_are_wanted(self, twin: Any) -> None:
        reader = twin.NatsRows({"offset"}, 2, 9, 999, 999, bytearray)
        reader.follow(SID, 0, -1)
        data = msg(b"a", SID, ack(1, 1), b"NATS/1.0\r\nA: 1\r\n\r\n", new_message(b"v"))
        reader.feed(data, 0, len(data))
        assert set(reader.take()[4]) == {"offset"}

    @pytest.mark.parametrize(("columns", "full_at"), [({"subject"}, 3), ({"offset"}, 0)])
    def test_subjects_count_for_the_size_of_a_batch_if_they_are_read(
        self, twin: Any, columns: set[str], full_at: int
    ) -> None:
        reader = twin.NatsRows(columns, 0, 9, 999, 999, bytearray)
        reader.follow(SID, 0, -1)
        data = b"".join(msg(b"%0400d" % number, SID, ack(number, number), b"", b"") for number in range(1, 6))
        state, _ = reader.feed(data, 0, len(data))
        assert (state == twin.FULL, reader.nbytes) == (bool(full_at), 0)
        assert reader.rows == (full_at or 5)

    def test_an_empty_batch(self, twin: Any) -> None:
        reader = twin.NatsRows(ALL, 0, 9, 999, 999, bytearray)
        assert reader.take() == (0, -1, -1, [], {})


def grpc(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def stored(offset: int, value: bytes = b"v", **fields: Any) -> bytes:
    message = api_pb2.Message(offset=offset, value=value, stream="s", timestamp=9, **fields)
    return message.SerializeToString(deterministic=True)


def run_stored(
    twin: Any, data: bytes, cuts: list[int], limits: tuple[int, int], begin: int, stop: int, group: int = 1
) -> Any:
    """Rows of data that is put in parts, a group of them at a time."""
    reader = twin.StoredRows(ALL, *limits, 1000, bytearray)
    reader.follow(begin, stop)
    log: list[Any] = []
    ends = [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    parts = list(zip([0, *ends], ends, strict=False))
    for at in range(0, len(parts), group):
        reader.put(data, spans(*(place for part in parts[at : at + group] for place in part)))
        while True:
            log.append((reader.state, reader.next_offset, reader.rows, reader.nbytes, reader.stands))
            if reader.state not in (twin.MORE, twin.FULL):
                return [*log, reader.bad, taken(reader)]
            if reader.state == twin.MORE:
                break
            log.append(taken(reader))
            reader.resume()
    return [*log, reader.inside_message, taken(reader)]


@st.composite
def stored_streams(draw: st.DrawFn) -> bytes:
    out, offset = draw(st.sampled_from([grpc(b""), b""])), draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 10))):
        headers = draw(
            st.dictionaries(st.sampled_from(["a", "é", "subject", "reply"]), st.binary(max_size=3))
        )
        message = stored(
            offset,
            draw(st.binary(max_size=30)),
            key=draw(st.binary(max_size=4)),
            subject=draw(st.sampled_from(["a", "b"])),
            headers=headers,
            correlationId=draw(st.sampled_from(["", "id"])),
        )
        out += grpc(message)
        offset += draw(st.sampled_from([1, 1, 1, 4]))
    return out


@given(
    stored_streams(), cut_lists, limits, st.integers(0, 5), st.sampled_from([-1, 0, 4, 9]), st.integers(1, 3)
)
def test_stored_messages(
    data: bytes, cuts: list[int], limits: tuple[int, int], begin: int, stop: int, group: int
) -> None:
    assert run_stored(_fastbulk, data, cuts, limits, begin, stop, group) == run_stored(
        readable.bulk, data, cuts, limits, begin, stop, group
    )


@given(stored_streams(), st.data())
def test_spoilt_stored_messages(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, max(len(data) - 1, 0)))
    spoilt = data[:at] + draw.draw(st.binary(max_size=4)) + data[at + draw.draw(st.integers(0, 3)) :]
    assert run_stored(_fastbulk, spoilt, [], (100, 10_000), 0, -1) == run_stored(
        readable.bulk, spoilt, [], (100, 10_000), 0, -1
    )


@pytest.mark.parametrize("twin", [readable.bulk, _fastbulk], ids=["python", "cython"])
class TestStoredRows:
    def test_what_a_row_has(self, twin: Any) -> None:
        message = stored(3, key=b"k", subject="x", headers={"a": b"1", "subject": b"x", "reply": b""})
        log = run_stored(twin, grpc(b"") + grpc(message), [], (9, 999), 3, -1)
        rows, first, last, gaps, columns = log[-1]
        assert (rows, first, last, gaps) == (1, 3, 3, [])
        assert columns["key"] == [b"k"]
        assert columns["header_names"] == [b"a"]
        assert columns["subject"] == [b"x"]

    def test_a_message_before_the_handshake(self, twin: Any) -> None:
        log = run_stored(twin, grpc(stored(0)), [], (9, 999), 0, -1)
        assert log[0][0] == twin.BROKEN

    @pytest.mark.parametrize("data", [b"\1\0\0\0\0", b"\0\0\x10\0\0", grpc(b"\xff")])
    def test_what_is_no_message(self, twin: Any, data: bytes) -> None:
        log = run_stored(twin, grpc(b"") + data, [5, 7], (9, 999), 0, -1)
        assert log[-3][0] == twin.BROKEN

    def test_messages_before_the_start_are_left_out(self, twin: Any) -> None:
        data = grpc(b"") + b"".join(grpc(stored(i)) for i in range(5))
        assert run_stored(twin, data, [], (9, 999), 3, -1)[-1][:4] == (2, 3, 4, [])

    def test_the_range_is_exact(self, twin: Any) -> None:
        data = grpc(b"") + b"".join(grpc(stored(i)) for i in (0, 1, 4, 7))
        log = run_stored(twin, data, [], (9, 999), 1, 6)
        assert log[-1][:4] == (2, 1, 4, [(2, 4), (5, 6)])

    def test_offsets_that_go_back_are_not_left_out(self, twin: Any) -> None:
        """So it is in the log of a server that was killed before it had noted what it stored."""
        data = grpc(b"") + b"".join(grpc(stored(i)) for i in (1, 2, 3, 4, 3, 4, 5, 6))
        assert run_stored(twin, data, [], (9, 999), 2, 6)[-1][:4] == (6, 2, 5, [])

    @pytest.mark.parametrize("offset", [2**63 - 1, -1, -(2**63)])
    def test_offset_that_no_read_can_continue_after_is_refused(self, twin: Any, offset: int) -> None:
        data = grpc(b"") + grpc(stored(4)) + grpc(stored(offset))
        log = run_stored(twin, data, [], (9, 999), 4, -1)
        assert log[-3][0] == twin.BROKEN
        assert log[-1][:4] == (1, 4, 4, [])

    def test_largest_offset_but_one_is_read(self, twin: Any) -> None:
        last = 2**63 - 2
        log = run_stored(twin, grpc(b"") + grpc(stored(4)) + grpc(stored(last)), [], (9, 999), 4, -1)
        assert log[-1][:4] == (2, 4, last, [(5, last)])
        assert log[0][1] == last + 1

    def test_payloads_behind_a_full_batch_wait(self, twin: Any) -> None:
        reader = twin.StoredRows(ALL, 2, 999, 1000, bytearray)
        reader.follow(0, -1)
        messages = [grpc(b""), *(grpc(stored(i)) for i in range(7))]
        data, size = b"".join(messages), len(messages[1])
        reader.put(data, spans(0, 5 + 3 * size, 5 + 3 * size, len(data) - 3))
        assert (reader.state, reader.rows, reader.next_offset) == (twin.FULL, 2, 2)
        reader.put(data, spans(len(data) - 3, len(data)))
        assert (reader.state, reader.rows, reader.inside_message) == (twin.FULL, 2, False)
        found = []
        while reader.state == twin.FULL:
            found.append(reader.take()[:3])
            reader.resume()
        assert found == [(2, 0, 1), (2, 2, 3), (2, 4, 5)]
        assert (reader.state, reader.rows, reader.next_offset) == (twin.MORE, 1, 7)

    def test_payloads_behind_the_end_are_dropped(self, twin: Any) -> None:
        reader = twin.StoredRows(ALL, 9, 999, 1000, bytearray)
        reader.follow(0, 1)
        data = grpc(b"") + grpc(stored(0)) + b"\1\0\0\0\0"
        reader.put(data, spans(0, len(data)))
        for _ in range(2):
            assert (reader.state, reader.rows, reader.bad, reader.inside_message) == (
                twin.DONE,
                1,
                b"",
                False,
            )
            reader.put(data, spans(0, len(data)))
            reader.resume()

    def test_a_new_subscription_forgets_the_last_one(self, twin: Any) -> None:
        reader = twin.StoredRows(ALL, 1, 999, 1000, bytearray)
        data = grpc(b"") + grpc(stored(0)) + grpc(stored(1))
        for _ in range(2):
            reader.follow(0, -1)
            reader.put(data, spans(0, len(data)))
            assert reader.state == twin.FULL
            assert reader.take()[:3] == (1, 0, 0)

    @pytest.mark.parametrize("pair", [(-1, 2), (3, 2), (0, 6), (6, 6), (2**62, 2**62)])
    def test_spans_outside_the_input_are_refused(self, twin: Any, pair: tuple[int, int]) -> None:
        reader = twin.StoredRows(ALL, 9, 999, 1000, bytearray)
        reader.follow(0, -1)
        with pytest.raises(UsageError, match=f"{pair[0]} to {pair[1]} are not a part of 5 bytes"):
            reader.put(grpc(b""), spans(0, 5, *pair))
        assert not reader.stands
