"""NATS messages taken out of a connection: what both twins do, that they do the same, that nats-py agrees."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from liftenvelope._native import _fastframes
from liftenvelope.errors import UsageTypeError
from tests.twin import readable
from tests.twin.test_frames import split

TWINS = pytest.mark.parametrize("frames", [readable.frames, _fastframes], ids=["python", "cython"])
MAX_MESSAGE = 200
OPEN, PAYLOADS, OTHER = 1, 2, 3
HEADERS = b"NATS/1.0\r\na: b\r\n\r\n"


def msg(sid: int, payload: bytes, subject: bytes = b"a.b", reply: bytes = b"") -> bytes:
    return b"MSG %b %d %b%d\r\n%b\r\n" % (subject, sid, reply and reply + b" ", len(payload), payload)


def hmsg(sid: int, payload: bytes, headers: bytes = HEADERS, reply: bytes = b"") -> bytes:
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    return b"HMSG a.b %d %b%b\r\n%b%b\r\n" % (sid, reply and reply + b" ", sizes, headers, payload)


def walker_of(frames: ModuleType) -> Any:
    walker = frames.NatsWalker(MAX_MESSAGE)
    walker.open(OPEN)
    walker.open(PAYLOADS, payloads=True)
    return walker


def walk_all(walker: Any, pieces: list[bytes]) -> tuple[dict[int, list[Any]], bytes]:
    """Messages taken for each subscription, and the remaining bytes. Every other piece is only borrowed."""
    taken: dict[int, list[Any]] = {}
    left = b""
    for number, piece in enumerate(pieces):
        room = bytearray(piece)
        if number % 2:
            walked = walker.walk_over(memoryview(room))
            room[:] = b"?" * len(room)
        else:
            walker.feed(piece)
            walked = walker.walk()
        rest = b"-"
        while rest:
            runs, rest = walked
            left += rest
            for sid, size, messages in runs:
                assert messages
                assert size == sum(len(m if sid == PAYLOADS else m[3]) for m in messages)
                taken.setdefault(sid, []).extend(messages)
            if rest:
                walked = walker.walk()
    return taken, left


@TWINS
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_are_taken_and_all_else_is_left(frames: ModuleType, size: int) -> None:
    others = [b"PING\r\n", b"+OK\r\n", msg(OTHER, b"MSG a.b 1 3\r\nabc\r\n"), b"-ERR 'no'\r\n", b"PONG\r\n"]
    others += [b'INFO {"a": 1}\r\n', hmsg(OTHER, b"x")]
    mine = [
        msg(OPEN, b"one"), msg(PAYLOADS, b"two"), hmsg(OPEN, b"three", reply=b"r"), msg(OPEN, b""),
        hmsg(PAYLOADS, b"four"), msg(OPEN, b"5", "sch\u00f6n".encode(), b"\xff"), msg(PAYLOADS, b"\r\n" * 9),
    ]  # fmt: skip
    data = b"".join(part for pair in zip(mine, others, strict=True) for part in pair)
    taken, left = walk_all(walker_of(frames), split(data, [size]))
    assert taken == {
        OPEN: [
            ("a.b", b"", None, b"one"),
            ("a.b", b"r", HEADERS, b"three"),
            ("a.b", b"", None, b""),
            ("sch\u00f6n", b"\xff", None, b"5"),
        ],
        PAYLOADS: [b"two", b"four", b"\r\n" * 9],
    }
    assert left == b"".join(others)


@TWINS
@pytest.mark.parametrize("reply", [b"", b"r"])
def test_words_stand_between_any_number_of_blanks(frames: ModuleType, reply: bytes) -> None:
    """nats-server 2.15.1 writes two blanks where it leaves out the reply in its answer to CONSUMER.RESET."""
    data = b""
    for whole in (msg(OPEN, b"one", reply=reply), hmsg(OPEN, b"two", reply=reply)):
        line, end, rest = whole.partition(b"\r\n")
        data += line.replace(b" ", b"   ") + end + rest
    expected = [("a.b", reply, None, b"one"), ("a.b", reply, HEADERS, b"two")]
    assert walk_all(walker_of(frames), [data]) == ({OPEN: expected}, b"")


@TWINS
def test_order_is_kept_around_what_is_left(frames: ModuleType) -> None:
    walker = walker_of(frames)
    walker.feed(msg(OPEN, b"1") + msg(PAYLOADS, b"2") + b"PONG\r\n" + b"PING\r\n" + msg(PAYLOADS, b"3"))
    assert walker.walk() == (
        [(OPEN, 1, [("a.b", b"", None, b"1")]), (PAYLOADS, 1, [b"2"])],
        b"PONG\r\nPING\r\n",
    )
    assert walker.walk() == ([(PAYLOADS, 1, [b"3"])], b"")
    assert walker.walk() == ([], b"")


@TWINS
@pytest.mark.parametrize("headers", [b"5\r\n", b"0\r\n\r\n", b" 5\r\n"])
def test_line_that_nats_py_would_misread_is_left_without_its_message(
    frames: ModuleType, headers: bytes
) -> None:
    """nats-py would take the number for the size of the message, and what follows for commands."""
    walker, whole = walker_of(frames), hmsg(OTHER, b"MSG a.b 4 3\r\nyes\r\n", headers)
    line = whole[: whole.index(b"\r\n") + 2]
    walker.feed(b"PING\r\n" + whole + b"PONG\r\n")
    assert walker.walk() == ([], b"PING\r\n" + line)
    assert walker.walk() == ([], whole[len(line) :] + b"PONG\r\n")
    assert walker.walk() == ([], b"")


@TWINS
def test_what_is_left_is_not_held_back(frames: ModuleType) -> None:
    walker, other = walker_of(frames), msg(OTHER, b"12345678")
    walker.feed(other[:-5])
    assert walker.walk() == ([], other[:-5])
    walker.feed(other[-5:] + b"PI")
    assert walker.walk() == ([], other[-5:])
    walker.feed(b"NG\r\n")
    assert walker.walk() == ([], b"PING\r\n")


@TWINS
@pytest.mark.parametrize(
    "line",
    [
        b"MSG a.b 1\r\n", b"MSG  \r\n", b"MSG a.b 1 3 \r\n", b"MSG a.b x 3\r\n", b"MSG a.b 1 -3\r\n",
        b"MSG a.b 1 r q 3\r\n", b"MSG a.b 1 1234567890123456789\r\n", b"MSG \xff 1 3\r\n", b"MSG a.b 1 3\n",
        b"MSG a.b 1 201\r\n", b"HMSG a.b 1 3\r\n", b"HMSG a.b 1 5 3\r\n", b"HMSG a.b 1 r q 1 3\r\n",
        b"msg a.b 1 3\r\n", b"MSG\ta.b 1 3\r\n", b"PING \r\n", b"\r\n", b"\n", b"-ERR ''\r\n", b"-ERR x\r\n",
        b"INFO \r\n", b"INFO a\rb\r\n", b"+OKAY\r\n", b"x" * 70_000, b"MSG a.b 1 1000000000000000000\r\n",
    ],
)  # fmt: skip
def test_from_what_no_server_writes_everything_is_left(frames: ModuleType, line: bytes) -> None:
    for size in (1, 1000) if len(line) < 1000 else (5000, 100_000):
        walker = walker_of(frames)
        rest = line + b"abc\r\n" + msg(OPEN, b"late")
        taken, left = walk_all(walker, split(msg(OPEN, b"fine") + rest, [size]))
        assert taken == {OPEN: [("a.b", b"", None, b"fine")]}
        assert left == rest
        walker.reset()
        assert walk_all(walker, [msg(PAYLOADS, b"new")]) == ({PAYLOADS: [b"new"]}, b"")


@TWINS
@pytest.mark.parametrize("cut", range(1, len(msg(OPEN, b"payload"))))
def test_half_a_message_goes_back_when_it_is_not_wanted_any_more(frames: ModuleType, cut: int) -> None:
    data = msg(OPEN, b"payload")
    for give_up in ("close", "pass_all"):
        walker = walker_of(frames)
        walker.feed(b"PING\r\n" + data[:cut])
        assert walker.walk() == ([], b"PING\r\n")
        getattr(walker, give_up)(*([OPEN] if give_up == "close" else []))
        taken, left = walk_all(walker, [b"", data[cut:]])
        assert (taken, left) == ({}, data)


@TWINS
@pytest.mark.parametrize("cut", range(1, len(hmsg(OPEN, b"payload"))))
def test_reset_forgets_half_a_message(frames: ModuleType, cut: int) -> None:
    walker = walker_of(frames)
    walk_all(walker, [hmsg(OPEN, b"payload")[:cut]])
    walker.reset()
    assert walk_all(walker, [msg(PAYLOADS, b"new")]) == ({PAYLOADS: [b"new"]}, b"")


@TWINS
def test_the_rest_of_a_message_is_skipped(frames: ModuleType) -> None:
    walker = walker_of(frames)
    walker.skip(7)
    assert walk_all(walker, [b"MSG", b"\n\r\n\r", msg(PAYLOADS, b"x")]) == (
        {PAYLOADS: [b"x"]}, b"MSG\n\r\n\r",
    )  # fmt: skip


@TWINS
def test_a_large_message_in_small_pieces(frames: ModuleType) -> None:
    walker = frames.NatsWalker(1 << 30)
    walker.open(OPEN)
    walker.open(PAYLOADS, True)
    large = bytes(range(256)) * 2_000
    data = hmsg(OPEN, large) + msg(PAYLOADS, large) + msg(OTHER, large) + msg(PAYLOADS, large)
    taken, left = walk_all(walker, split(data, [1_000, 1, 32_768, 2]))
    assert taken == {OPEN: [("a.b", b"", HEADERS, large)], PAYLOADS: [large, large]}
    assert left == msg(OTHER, large)


@TWINS
def test_only_bytes_are_walked(frames: ModuleType) -> None:
    walker = walker_of(frames)
    walker.feed(bytearray(msg(OPEN, b"x")[:9]))
    walker.feed(memoryview(msg(OPEN, b"x")[9:]))
    assert walker.walk() == ([(OPEN, 1, [("a.b", b"", None, b"x")])], b"")
    with pytest.raises(UsageTypeError, match="data must be bytes-like, got str"):
        walker.feed("PING\r\n")


class Recording:
    """Calls of nats-py's parser to its client, in order with the messages that the walker takes."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, hdr: bytes | None
    ) -> None:
        self.seen.append((sid, subject.decode(), bytes(reply), hdr, data))

    async def _process_ping(self) -> None:
        self.seen.append("ping")

    async def _process_pong(self) -> None:
        self.seen.append("pong")

    async def _process_err(self, text: str) -> None:
        self.seen.append(text)

    async def _process_info(self, info: Any) -> None:
        self.seen.append(info)


sound = st.one_of(
    st.builds(msg, st.integers(1, 4), st.binary(max_size=60), reply=st.sampled_from([b"", b"_R_.x"])),
    st.builds(hmsg, st.integers(1, 4), st.binary(max_size=60), reply=st.sampled_from([b"", b"_R_.x"])),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'a'\r\n", b'INFO {"x": 1}\r\n']),
)
pieces_of = st.lists(st.integers(1, 50), min_size=1, max_size=10)


async def _seen_by_nats_py(pieces: list[bytes]) -> list[Any]:
    client = Recording()
    parser = Parser(client)
    try:
        for piece in pieces:
            await parser.parse(piece)
    except ProtocolError as error:
        client.seen.append(str(error))
    return client.seen


async def _seen_through_walker(walker: Any, pieces: list[bytes]) -> list[Any]:
    client = Recording()
    parser = Parser(client)
    try:
        for piece in pieces:
            walker.feed(piece)
            rest = b"-"
            while rest:
                runs, rest = walker.walk()
                client.seen += [(sid, *message) for sid, _, messages in runs for message in messages]
                if rest:
                    await parser.parse(rest)
    except ProtocolError as error:
        client.seen.append(str(error))
    return client.seen


@TWINS
@given(
    parts=st.lists(sound, max_size=12),
    sizes=pieces_of,
    end=st.sampled_from([b"", b"MSG a 1 x\r\n", b"oops\r\n"]),
)
def test_the_client_sees_what_it_would_see_without(
    frames: ModuleType, parts: list[bytes], sizes: list[int], end: bytes
) -> None:
    walker = frames.NatsWalker(MAX_MESSAGE)
    walker.open(OPEN)  # one alone: between several, only the order within each is kept
    pieces = split(b"".join(parts) + end, sizes)
    expected = asyncio.run(_seen_by_nats_py(pieces))
    assert asyncio.run(_seen_through_walker(walker, pieces)) == expected


wild = st.one_of(
    sound,
    st.binary(max_size=40),
    st.from_regex(
        rb"(MSG|HMSG|PING|-ERR|INFO)[ \t]?[a \xff]{0,4} ?[0-4]? ?(r )?\d{0,3} ?\d{0,3}\r?\n", fullmatch=True
    ),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), wild),
        st.tuples(st.sampled_from(["open", "close", "pass_all", "reset", "skip"]), st.integers(1, 4)),
    ),
    max_size=40,
)


@given(steps, pieces_of, st.integers(0, 70))
def test_twins_agree(steps: list[tuple[str, Any]], sizes: list[int], max_message: int) -> None:
    twins: list[Any] = [m.NatsWalker(max_message) for m in (readable.frames, _fastframes)]
    for name, argument in steps:
        pieces = split(argument, sizes) if name == "feed" else [argument]
        for piece in pieces:
            for walker in twins:
                arguments = [] if name in ("pass_all", "reset") else [piece]
                if name == "skip":
                    walker.reset()  # only the first bytes can be skipped
                if name == "open":
                    arguments.append(piece % 2 == 0)
                getattr(walker, name)(*arguments)
            left = b"-"
            while left:
                ours, theirs = (walker.walk() for walker in twins)
                assert ours == theirs
                left = ours[1]
