"""Messages of consumers: taken out of a connection alike by both twins, and their queue against a model."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope._native import _fastframes
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.nats.headers import Headers, headers_of
from tests.twin import readable
from tests.twin.awaiting import check_default_is_for_the_end_and_not_for_a_wait, check_next_item_can_be_a_task
from tests.twin.test_frames import split
from tests.twin.test_nats_walker import hmsg, msg

TWINS = pytest.mark.parametrize("frames", [readable.frames, _fastframes], ids=["python", "cython"])
SID, PREFIX = 1, b"_INBOX.x."
ACK = b"$JS.ACK.S.C.1.7.3.0.2"
HEADERS = b"NATS/1.0\r\na: b\r\n\r\n"


def walker_of(frames: ModuleType, acks: object = None) -> Any:
    class Message(frames.Delivered):  # type: ignore[name-defined, misc]
        __slots__ = ("__weakref__",)

        def __init__(self) -> None:
            raise AssertionError("made without")

    if frames is readable.frames:  # the readable twin makes its messages as anybody would
        Message.__init__ = frames.Delivered.__init__  # type: ignore[method-assign]
    walker = frames.NatsWalker(10_000)
    walker.open_delivered(SID, Message, acks, PREFIX)
    return walker


def seen(message: Any) -> tuple[Any, ...]:
    return message.subject, message.reply, message._headers, message.data, message._size, message._acks


def walk_all(walker: Any, pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], bytes]:
    taken: list[tuple[Any, ...]] = []
    left = b""
    for piece in pieces:
        walked = walker.walk_over(piece)
        rest = b"-"
        while rest:
            runs, rest = walked
            left += rest
            for sid, size, found in runs:
                assert sid == SID
                messages = found if isinstance(found, list) else found.messages()
                assert size == sum(len(message.data) for message in messages)
                taken += map(seen, messages)
            if rest:
                walked = walker.walk()
    return taken, left


@TWINS
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_and_statuses_are_made(frames: ModuleType, size: int) -> None:
    block = b"NATS/1.0 408 Request Timeout\r\n\r\n"
    status = hmsg(SID, b"", block).replace(b"a.b", PREFIX + b"7")
    forged = hmsg(SID, b"", b"NATS/1.0 409 Consumer Deleted\r\n\r\n", reply=ACK)
    stray = msg(SID, b"no reply and another subject")
    mine = [
        msg(SID, b"one", reply=ACK),
        hmsg(SID, b"two", HEADERS, ACK),
        forged,
        stray,
        msg(SID, b"", b"\xc3\xa4"),
    ]
    data = b"".join(part for one in mine for part in (one, status))
    acks = object()
    taken, left = walk_all(walker_of(frames, acks), split(data, [size]))
    reply, subject = ACK.decode(), (PREFIX + b"7").decode()
    assert left == b""
    assert taken[1::2] == [(subject, "", block, b"", len(subject) + len(block), acks)] * len(mine)
    assert taken[::2] == [
        ("a.b", reply, None, b"one", 3 + len(ACK) + 3, acks),
        ("a.b", reply, HEADERS, b"two", 3 + len(ACK) + len(HEADERS) + 3, acks),
        ("a.b", reply, b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b"", 3 + len(ACK) + 33, acks),
        ("a.b", "", None, b"no reply and another subject", 3 + 28, acks),
        ("\u00e4", "", None, b"", 2, acks),
    ]


@TWINS
def test_a_status_is_alone_in_its_list_and_in_its_place(frames: ModuleType) -> None:
    status = hmsg(SID, b"", b"NATS/1.0 408\r\n\r\n").replace(b"a.b", PREFIX + b"7")
    one, two, three = (msg(SID, text, reply=ACK) for text in (b"1", b"2", b"3"))
    walker = walker_of(frames)
    walker.open(2, True)
    walker.feed(one + two + status + status + three + msg(2, b"other") + one + status)
    runs, left = walker.walk()
    assert left == b""
    assert [
        (sid, size, [part if isinstance(part, bytes) else part.data for part in found])
        for sid, size, found in runs
    ] == [
        (SID, 2, [b"1", b"2"]),
        (SID, 0, [b""]),
        (SID, 0, [b""]),
        (SID, 2, [b"3", b"1"]),
        (2, 5, [b"other"]),
        (SID, 0, [b""]),
    ]


@TWINS
def test_what_nats_py_objects_to_is_left_to_it(frames: ModuleType) -> None:
    broken = msg(SID, b"x", reply=b"\xff")
    assert walk_all(walker_of(frames), [broken + msg(SID, b"y", reply=ACK)]) == (
        [("a.b", ACK.decode(), None, b"y", 3 + len(ACK) + 1, None)],
        broken,
    )


@TWINS
def test_a_message_in_part_goes_back_when_the_subscription_is_closed(frames: ModuleType) -> None:
    walker, frame = walker_of(frames), msg(SID, b"0123456789", reply=ACK)
    for cut in range(1, len(frame)):
        walker.open_delivered(SID, frames.Delivered, None, PREFIX)
        walker.feed(frame[:cut])
        kept, before = walker.walk()
        walker.close(SID)
        walker.feed(frame[cut:])
        taken, left = walker.walk()
        assert (kept, taken, before + left) == ([], [], frame)


@TWINS
def test_only_messages_can_be_made(frames: ModuleType) -> None:
    with pytest.raises(UsageTypeError, match="no subclass of Delivered"):
        walker_of(frames).open_delivered(2, dict, None, b"")


@TWINS
@pytest.mark.parametrize("reply", [ACK.decode(), "", "sch\u00f6n"])
def test_made_by_hand(frames: ModuleType, reply: str) -> None:
    message = frames.Delivered("a", reply, b"x", {"A": "b"}, None)
    assert seen(message) == ("a", reply, {"A": "b"}, b"x", 0, None)
    assert message._is_open == bool(reply)
    assert message._ack_frame(b"+ACK") == f"PUB {reply} 4\r\n+ACK\r\n".encode()
    message._acked = True
    assert not message._is_open


@TWINS
def test_nothing_is_kept(frames: ModuleType) -> None:
    walker = walker_of(frames)
    walker.feed(msg(SID, b"x", reply=ACK) * 3)
    [(_, _, messages)], _ = walker.walk()
    kept = [weakref.ref(message) for message in messages]
    del messages
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


class Model:
    """Draw the actions of a queue and the expected calls."""

    def __init__(self, frames: ModuleType, threshold: int, in_bytes: bool) -> None:
        self.lows: list[tuple[int, int]] = []
        self.queue = frames.MessageQueue(threshold, in_bytes, self.note, self.wait)
        self.frames = frames

    def note(self) -> None:
        self.lows.append((self.queue.owed, self.queue.buffered))
        self.queue.owed += 5

    async def wait(self) -> str:
        return "waited"

    def message(self, size: int) -> Any:
        message = self.frames.Delivered("a", "r", b"x" * size, None, None)
        message._size = size
        return message


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(st.integers(0, 9), max_size=600)),
        st.tuples(st.just("append"), st.integers(0, 9)),
        st.tuples(st.just("pop"), st.integers(1, 700)),
        st.tuples(st.just("pop_many"), st.integers(-1, 700)),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("owe"), st.integers(0, 50)),
    ),
    max_size=12,
)


@TWINS
@given(ACTIONS, st.integers(1, 30), st.booleans())
def test_the_queue_keeps_its_account(
    frames: ModuleType, actions: list[tuple[str, Any]], threshold: int, in_bytes: bool
) -> None:
    model = Model(frames, threshold, in_bytes)
    queue, held = model.queue, deque[Any]()
    owed = arrived = 0
    lows: list[tuple[int, int]] = []

    def count(messages: Any) -> int:
        return sum(message._size if in_bytes else 1 for message in messages)

    for action, value in actions:
        if action in ("extend", "append"):
            new = [model.message(size) for size in ([value] if action == "append" else value)]
            held += new
            owed -= count(new)
            arrived += sum(message._size for message in new)
            queue.append(new[0]) if action == "append" else queue.extend(new)
        elif action == "pop":
            for _ in range(min(value, len(held))):
                first = held.popleft()
                if owed + count(held) < threshold:
                    lows.append((owed, count(held)))
                    owed += 5
                assert queue.pop() is first
        elif action == "pop_many":
            first_ones = [held.popleft() for _ in range(min(value, len(held)))]
            if first_ones and owed + count(held) < threshold:
                lows.append((owed, count(held)))
                owed += 5
            assert queue.pop_many(value) == first_ones
        elif action == "clear":
            held.clear()
            queue.clear()
        else:
            owed += value
            queue.owed += value
        assert list(queue) == list(held)
        assert (len(queue), queue.owed, queue.buffered, model.lows) == (len(held), owed, count(held), lows)
        assert (queue.size, queue.arrived) == (sum(message._size for message in held), arrived)
    assert [queue.pop() for _ in range(len(queue))] == list(held)
    with pytest.raises(IndexError, match="no message is there"):
        queue.pop()


@TWINS
async def test_iterating(frames: ModuleType) -> None:
    model = Model(frames, 1, False)
    queue = model.queue
    messages = [model.message(1) for _ in range(3)]
    queue.extend(list(messages))
    read: list[Any] = []
    async for message in queue:
        read.append(message)
        if message == "waited":
            break
    assert read == [*messages, "waited"]
    queue.append(messages[0])
    assert await asyncio.wait_for(anext(queue), 60) is messages[0]
    assert await asyncio.ensure_future(anext(queue)) == "waited"
    queue.append(messages[1])
    with pytest.raises(StopIteration) as caught:  # the way of whoever traces, and of send()
        next(anext(queue).__await__())
    assert caught.value.value is messages[1]


@TWINS
async def test_default_is_for_the_end_and_not_for_a_wait(frames: ModuleType) -> None:
    await check_default_is_for_the_end_and_not_for_a_wait(
        lambda wait: frames.MessageQueue(0, False, lambda: None, wait)
    )


@TWINS
async def test_next_item_can_be_a_task(frames: ModuleType) -> None:
    messages = [Model(frames, 1, False).message(1) for _ in range(2)]

    def filled(wait: Callable[[], Awaitable[str]]) -> Any:
        queue = frames.MessageQueue(0, False, lambda: None, wait)
        queue.extend(list(messages))
        return queue

    await check_next_item_can_be_a_task(filled, [id(message) for message in messages], id)


@TWINS
async def test_what_the_owner_raises_is_raised(frames: ModuleType) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def wait() -> None:
        raise StopAsyncIteration

    queue = frames.MessageQueue(1, False, fail, wait)
    queue.append(Model(frames, 1, False).message(1))
    with pytest.raises(ZeroDivisionError):
        await anext(queue)
    assert [message async for message in queue] == []


@TWINS
def test_the_queue_is_collected(frames: ModuleType) -> None:
    class Owner:
        def __init__(self) -> None:
            self.queue = frames.MessageQueue(1, False, self.low, self.wait)
            self.queue.append(frames.Delivered("a", "", b"", None, self))

        def low(self) -> None: ...

        async def wait(self) -> None: ...

    owner = weakref.ref(Owner())
    gc.collect()
    assert owner() is None


NUMBER = st.one_of(
    st.integers(0, 2**64).map(str),
    st.sampled_from([str(2**63 - 1), str(2**63), "007", "", "+7", "-1", "7x", "\u0667", "1" * 19, "1" * 20]),
)
PLAIN = st.sampled_from(["7", str(2**63 - 1), "0"])
REPLY = st.one_of(
    st.lists(st.one_of(PLAIN, NUMBER), min_size=4, max_size=11).map(
        lambda tokens: ".".join(["$JS", "ACK", *tokens])
    ),
    st.tuples(
        st.sampled_from(["$JS.ACK.S.C.1", "$JS.ACK.D.A.S.C.1", "$JS.ACK.\ud800.C.1"]), PLAIN, NUMBER
    ).map(lambda parts: f"{parts[0]}.{parts[1]}.7.{parts[2]}.2"),
    st.text(alphabet="$JSACK.17\n", max_size=30),
    st.sampled_from([ACK.decode(), "$JS.ACK.S.C.1.7.3.0.2.x", "$JS.ACK.D.A.S.C.1.7.3.0.2.x.y", ""]),
)


def replied(frames: ModuleType, reply: str) -> Any:
    return frames.Delivered("a", reply, b"x", None, None)


@given(REPLY, st.sampled_from([7, 3, 0]))
def test_twins_read_the_same_numbers_of_a_reply(reply: str, expected: int) -> None:
    found = []
    for frames in (readable.frames, _fastframes):
        message = replied(frames, reply)
        taken, block = frames.in_order([message], expected), frames.MessageBlock([message])
        assert block.in_order(expected) == len(taken)
        times = frames.stored_times([block], lambda reply: -len(reply))
        found.append((taken, block.sequences, block.last_sequence, times))
    assert found[0] == found[1]


@TWINS
def test_messages_in_order_end_at_the_first_gap(frames: ModuleType) -> None:
    messages = [replied(frames, f"$JS.ACK.S.C.1.{10 * n}.{n}.{n + 5}.0") for n in (4, 5, 6, 8, 9)]
    assert frames.in_order(messages, 4) == [40, 50, 60]
    assert frames.in_order(messages, 5) == []
    assert frames.in_order([], 1) == []
    messages[1] = replied(frames, "$JS.ACK.D.A.S.C.1.51.5.77.0.random")
    messages[2] = replied(frames, "someone's inbox")
    assert frames.in_order(messages, 4) == [40, 51]
    blocks = [frames.MessageBlock(messages[:2]), frames.MessageBlock(messages[2:])]
    times = memoryview(frames.stored_times(blocks, len)).cast("q")
    assert times.tolist() == [9, 77, 15, 13, 14]


@TWINS
def test_numbers_are_those_of_a_message_that_was_made_anew(frames: ModuleType) -> None:
    message = replied(frames, "$JS.ACK.S.C.1.7.3.5.0")
    assert frames.in_order([message], 3) == [7]
    message.__init__("a", "$JS.ACK.S.C.1.8.4.6.0", b"x", None, None)
    assert frames.in_order([message], 4) == [8]
    message.__init__("a", "someone's inbox", b"x", None, None)
    assert frames.in_order([message, message], 4) == []
    times = frames.stored_times([frames.MessageBlock([message])], len)
    assert memoryview(times).cast("q").tolist() == [15]


@TWINS
def test_numbers_are_read_from_bytes_as_received(frames: ModuleType) -> None:
    walker = walker_of(frames)
    walker.feed(msg(SID, b"x", reply=ACK))
    [(_, _, messages)], _ = walker.walk()
    assert frames.in_order(messages, 3) == [7]


@TWINS
def test_payloads_are_joined_as_a_column(frames: ModuleType) -> None:
    def made(subject: str, data: bytes, headers: Any = None) -> Any:
        return frames.Delivered(subject, "", data, headers, None)

    messages = [made("a", b"tea"), made("a", b""), made("a", b"milk")]
    blocks = [frames.MessageBlock(messages[:1]), frames.MessageBlock(messages[1:])]
    ends, values, subject = frames.joined(blocks)
    assert memoryview(ends).cast("i").tolist() == [0, 3, 3, 7]
    assert (values, subject) == (b"teamilk", "a")
    assert frames.joined([*blocks, frames.MessageBlock([made("b", b"")])])[2] is None
    assert frames.joined([]) == (bytes(4), b"", None)
    large = made("a", bytes(1 << 20))
    with pytest.raises(
        UsageError, match="values of a batch must have at most 2147483647 bytes, got 2147483648"
    ):
        frames.joined([frames.MessageBlock([large] * 2048)])


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.binary())))
def test_twins_join_the_same_columns(rows: list[tuple[str, bytes]]) -> None:
    found = []
    for frames in (readable.frames, _fastframes):
        messages = [frames.Delivered(subject, "", data, None, None) for subject, data in rows]
        blocks = [frames.MessageBlock(messages[:2]), frames.MessageBlock(messages[2:])]
        found.append((frames.joined(blocks), frames.subjects(blocks)))
    assert found[0] == found[1]


def entries(message: Any) -> list[tuple[str, bytes]]:
    """The headers of a message as the public class reads them, with the values of a name together."""
    given = message._headers
    headers = headers_of(given) if isinstance(given, bytes) else Headers(given.items())
    return [(name, value.encode()) for name in headers for value in headers.get_all(name)]


def with_headers(frames: ModuleType, headers: list[Any]) -> list[Any]:
    return [frames.MessageBlock([frames.Delivered("a", "", b"", one, None) for one in headers])]


LINE = st.one_of(
    st.tuples(st.sampled_from(["a", "b", "a b", " a\t", "é", "", "Nats-Msg-Id"]), st.text(max_size=5)).map(
        lambda pair: f"{pair[0]}:{pair[1]}".encode()
    ),
    st.lists(st.sampled_from([b"a", b":", b" ", b"\r", b"\n", b"\r\n", b"\x0b", b"\xff", b"NATS/1.0"])).map(
        b"".join
    ),
)
BLOCK = st.tuples(
    st.sampled_from([b"NATS/1.0", b"NATS/1.0 404 No Messages", b"NATS/1.0 ", b" 503", b"", b"nats"]),
    st.lists(LINE, max_size=20),
    st.sampled_from([b"\r\n\r\n", b"\r\n", b"", b"\r"]),
).map(lambda parts: b"\r\n".join([parts[0], *parts[1]]) + parts[2])


@example([b"NATS/1.0\r\nVia: a\r\nTag: x\r\nVia: b\r\n\r\n"])
@example([b"NATS/1.0\r\n" + b"".join(b"%d: x\r\n" % number for number in range(17)) + b"\r\n"])
@given(st.lists(st.one_of(st.none(), BLOCK, st.dictionaries(st.sampled_from(["a", "é"]), st.just("ö")))))
def test_twins_make_the_same_columns_of_headers(headers: list[Any]) -> None:
    found = [
        frames.header_columns(with_headers(frames, headers), entries)
        for frames in (readable.frames, _fastframes)
    ]
    assert found[0] == found[1]


@TWINS
def test_headers_are_a_column_of_maps(frames: ModuleType) -> None:
    headers = [None, b"NATS/1.0\r\nA: b\r\nNats-Msg-Id:17 \r\n\r\n", {"a": "ö"}]
    ends, name_ends, names, value_ends, values = frames.header_columns(with_headers(frames, headers), entries)
    assert memoryview(ends).cast("i").tolist() == [0, 0, 2, 3]
    assert (memoryview(name_ends).cast("i").tolist(), names) == ([0, 1, 12, 13], b"ANats-Msg-Ida")
    assert (memoryview(value_ends).cast("i").tolist(), values) == ([0, 1, 3, 5], b"b17\xc3\xb6")
    large = [("a", bytes(1 << 20))]
    with pytest.raises(
        UsageError, match="headers of a batch must have at most 2147483647 bytes, got 2147483648"
    ):
        frames.header_columns(with_headers(frames, [{"a": "b"}] * 2048), lambda _: large)


@TWINS
def test_headers_that_change_the_list_when_read_do_not_change_the_column(frames: ModuleType) -> None:
    blocks = with_headers(frames, [{"a": "b"}] * 3)

    def change(message: Any) -> list[tuple[str, bytes]]:
        blocks.clear()
        message._headers = b"NATS/1.0\r\nMuch: longer\r\n\r\n"
        return [("a", b"b")]

    assert memoryview(frames.header_columns(blocks, change)[0]).cast("i").tolist() == [0, 1, 2, 3]


@TWINS
def test_headers_that_cannot_be_read_raise(frames: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError):
        frames.header_columns(with_headers(frames, [{"a": "b"}]), lambda _: 1 // 0)


@TWINS
def test_what_reads_another_reply_may_raise(frames: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError):
        frames.stored_times([frames.MessageBlock([replied(frames, "x")])], lambda _: 1 // 0)


def block_walker(frames: ModuleType, acks: object = None) -> Any:
    walker = walker_of(frames)
    walker.open_delivered(SID, frames.Delivered, acks, PREFIX, True)
    return walker


def reply_of(sequence: int, delivery: int) -> bytes:
    return b"$JS.ACK.S.C.1.%d.%d.%d.0" % (sequence, delivery, sequence + 5)


@TWINS
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_walker_makes_the_same_messages_of_blocks(frames: ModuleType, size: int) -> None:
    status = hmsg(SID, b"", b"NATS/1.0 408\r\n\r\n").replace(b"a.b", PREFIX + b"7")
    data = [
        msg(SID, b"one", reply=reply_of(4, 1)),
        hmsg(SID, b"two", HEADERS, reply_of(9, 2)),
        status,
        msg(SID, b"\xff" * 5000, reply=reply_of(10, 3)),
        msg(SID, b"", b"\xc3\xa4", reply=reply_of(11, 4)),
        msg(SID, b"no reply"),
    ]
    acks = object()
    pieces = split(b"".join(data), [size])
    as_objects, _ = walk_all(walker_of(frames, acks), pieces)
    assert walk_all(block_walker(frames, acks), pieces) == (as_objects, b"")


@TWINS
def test_block_of_a_walk_has_rows_up_to_the_next_status(frames: ModuleType) -> None:
    status = hmsg(SID, b"", b"NATS/1.0 408\r\n\r\n").replace(b"a.b", PREFIX + b"7")
    walker = block_walker(frames)
    rows = [msg(SID, b"x" * number, reply=reply_of(10 * number, number)) for number in range(1, 7)]
    walker.feed(b"".join([*rows[:3], status, *rows[3:]]))
    [(_, size, first), (_, _, [told]), (_, _, second)], left = walker.walk()
    assert (size, len(first), told.subject, len(second), left) == (6, 3, "_INBOX.x.7", 3, b"")
    assert (first.sequences, second.sequences, first.last_sequence) == ([10, 20, 30], [40, 50, 60], 30)
    assert [first.in_order(1), first.in_order(2), second.in_order(4)] == [3, 0, 3]
    assert first.size == 3 * (3 + len(reply_of(10, 1))) + 6
    part = first.part(1, 3)
    assert (part.sequences, part.in_order(2), part[0].data, part.size) == (
        [20, 30],
        2,
        b"xx",
        first.size - 27,
    )
    assert [one.data for one in part.messages()] == [b"xx", b"xxx"]
    for wrong in (-1, 2):
        with pytest.raises(IndexError):
            part[wrong]
    for begin, end in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(IndexError):
            part.part(begin, end)
    with pytest.raises(IndexError):
        _ = part.part(1, 1).last_sequence


WORD = REPLY.filter(lambda reply: reply.isascii() and bool(reply) and not reply.split()[1:])


@given(st.lists(st.tuples(WORD, st.binary(max_size=9)), max_size=9))
def test_twins_walk_into_the_same_blocks(rows: list[tuple[str, bytes]]) -> None:
    found = []
    for frames in (readable.frames, _fastframes):
        walker = block_walker(frames)
        data = b"".join(
            msg(SID, body, subject=b"a" if body else b"b", reply=reply.encode()) for reply, body in rows
        )
        walker.feed(data)
        runs, left = walker.walk()
        blocks = [block for _, _, block in runs]
        found.append(
            (
                [(block.sequences, block.in_order(7), block.size) for block in blocks],
                frames.joined(blocks),
                frames.subjects(blocks),
                frames.stored_times(blocks, lambda reply: -len(reply)),
                left,
            )
        )
    assert found[0] == found[1]


@TWINS
def test_headers_of_rows_are_those_of_their_messages(frames: ModuleType) -> None:
    blocks = [HEADERS, b"NATS/1.0\r\nVia: a\r\nVia: b\r\n\r\n", b"NATS/1.0\r\n\r\n", b"x: y"]
    walker = block_walker(frames)
    walker.feed(b"".join(hmsg(SID, b"v", one, reply_of(n, n)) for n, one in enumerate(blocks, 1)))
    [(_, _, rows)], _ = walker.walk()
    as_rows = frames.header_columns([rows], entries)
    assert as_rows == frames.header_columns(with_headers(frames, blocks), entries)
    assert memoryview(as_rows[0]).cast("i").tolist()[:3] == [0, 1, 3]


@TWINS
def test_message_that_is_made_anew_keeps_the_row_of_its_block(frames: ModuleType) -> None:
    message = replied(frames, "$JS.ACK.S.C.1.7.3.5.0")
    block = frames.MessageBlock([message])
    data = message.data
    message.__init__("b", "$JS.ACK.S.C.1.8.4.6.0", b"another payload", None, None)
    assert frames.joined([block])[1] in (data, message.data)


@TWINS
def test_blocks_without_messages_have_no_rows(frames: ModuleType) -> None:
    empty = frames.MessageBlock([])
    assert (len(empty), empty.size, empty.sequences, empty.in_order(1), empty.messages()) == (0, 0, [], 0, [])
    assert frames.joined([empty]) == (bytes(4), b"", None)
    assert frames.subjects([]) == (bytes(4), b"")


def test_block_that_was_never_filled_is_empty() -> None:
    empty = _fastframes.MessageBlock.__new__(_fastframes.MessageBlock)
    assert (len(empty), empty.in_order(1), empty.sequences, empty.messages()) == (0, 0, [], [])
    assert len(empty.part(0, 0)) == 0
    assert _fastframes.joined([empty]) == (bytes(4), b"", None)


@TWINS
def test_rows_are_collected_with_their_acks(frames: ModuleType) -> None:
    class Acks:
        block: Any = None

    acks = Acks()
    walker = block_walker(frames, acks)
    walker.feed(msg(SID, b"x", reply=ACK))
    [(_, _, acks.block)], _ = walker.walk()
    kept = weakref.ref(acks)
    del acks, walker
    gc.collect()
    assert kept() is None
