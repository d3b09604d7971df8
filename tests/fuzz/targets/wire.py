"""Connections: HTTP/2 frames with gRPC messages, NATS lines, and the queue of delivered messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fuzz.target import PUBLISHES, Chunks, Exact, Target, option
from tests.fuzz.targets import nats
from tests.fuzz.targets.frames import DATA, MAX_MESSAGE, frame_of, seeds_of_frames
from tests.fuzz.targets.ordered import TARGET as ORDERED
from tests.fuzz.targets.queue import TARGET as QUEUE
from tests.sinks import RecordingSink

__all__ = ["TARGETS"]

MAX_FRAME = 200
#: Subjects of messages without a reply that are statuses begin with this.
STATUSES = b"st."


def fed(walker: Any, data: bytes | memoryview, log: list[Any], plain: Any) -> None:
    """Feed bytes, and walk until nothing is left."""
    walker.feed(data)
    left = b"-"
    while left:
        taken, left = walker.walk()
        log.append((plain(taken), left))


def walked_over(walker: Any, data: bytes, log: list[Any], exact: Exact) -> None:
    """Walk over NATS lines in a buffer that is overwritten at once, as the next read does."""
    buffer = exact(bytearray(data))
    taken, left = walker.walk_over(memoryview(buffer))
    memoryview(buffer)[:] = b"\xff" * len(data)
    log.append((messages(taken), left))
    if left:
        fed(walker, b"", log, messages)


def same(found: Any) -> Any:
    return found


def opened(walker: Any, stream_id: int, with_sink: int) -> Any:
    return walker.open(stream_id, RecordingSink() if with_sink else None)


def fed_in_place(walker: Any, data: bytes, log: list[Any], exact: Exact) -> None:
    """Feed a buffer that is overwritten as soon as the walk is over, as the next read does."""
    buffer = exact(bytearray(data))
    fed(walker, memoryview(buffer), log, same)
    memoryview(buffer)[:] = b"\xff" * len(data)


def frames(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Walk frames; between them, streams are opened, muted and closed.

    Frames that come 32 times are long enough to be walked in place behind the rest of the last input.
    """
    options, *rest = chunks
    walker = twin.FrameWalker(MAX_FRAME, MAX_MESSAGE, option(options, 0, 4) * 8)
    cutters = [opened(walker, 1, option(options, 1, 2))]
    log: list[Any] = []
    held, join, times = b"", option(options, 2, 4), 32 if option(options, 4, 8) == 1 else 1
    for i, chunk in enumerate(rest):
        action = option(chunk, 0) >> 5
        if action == 1:
            cutters.append(opened(walker, 3, option(chunk, 1, 2)))
        elif action in (2, 3):
            (walker.mute if action == 2 else walker.close)(option(chunk, 1, 8))
        held += frame_of(chunk) * times
        if i & join == 0:
            cut = option(options, 3, 64)
            fed_in_place(walker, held[: len(held) - cut], log, exact)
            held = held[max(len(held) - cut, 0) :]
    fed(walker, exact(held), log, same)
    states = [(one.fault, one.fault_value, one.inside_message, payloads(one)) for one in cutters]
    return log, states, walker.oversize, packed(twin, rest)


def packed(twin: Any, bodies: list[bytes]) -> Any:
    """Messages as gRPC sends them, and cut again."""
    data = twin.pack_messages(bodies)
    cutter = twin.MessageCutter(MAX_MESSAGE)
    return data, cutter.feed(data), cutter.fault, cutter.fault_value, cutter.inside_message


def frames_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    options, *rest = chunks
    walker = twin.FrameWalker(MAX_FRAME, MAX_MESSAGE, option(options, 0, 4) * 8)
    cutters = [opened(walker, 1, option(options, 1, 2)), walker.open(3)]
    log: list[Any] = []
    data = b"".join(map(frame_of, rest))
    for at in range(0, len(data), step):
        fed(walker, data[at : at + step], log, same)
        if walker.oversize:
            log[-2] = (
                log[-2][0],
                b"",
            )  # the beginning of a frame that is too long, as much of it as has come
            break
    return by_stream(log), [(one.fault, payloads(one)) for one in cutters], walker.oversize


def payloads(cutter: Any) -> bytes | None:
    """Return the bytes that the sink of a cutter got; None without a sink."""
    return None if cutter.sink is None else cutter.sink.found


def by_stream(log: list[Any]) -> Any:
    """The messages of each stream, and all that was left."""
    found: dict[int, list[bytes]] = {}
    sizes: dict[int, int] = {}
    for taken, _ in log:
        for stream_id, size, messages in taken:
            found[stream_id] = found.get(stream_id, []) + messages
            sizes[stream_id] = sizes.get(stream_id, 0) + size
    return found, sizes, b"".join(left for _, left in log)


def messages(taken: list[Any]) -> list[Any]:
    """Return the fields of messages: tuples, payloads or objects."""
    return [
        (
            sid,
            size,
            [one if isinstance(one, tuple | bytes) else said(one) for one in listed(found)],
            rows(found),
        )
        for sid, size, found in taken
    ]


def listed(found: Any) -> list[Any]:
    """Return messages that come in a list or a block."""
    return found if isinstance(found, list) else list(found.messages())


def rows(found: Any) -> Any:
    """Return the numbers of the rows of a block; None for a list."""
    return None if isinstance(found, list) else (found.sequences, found.in_order(1), found.size)


def said(one: Any) -> Any:
    return one.subject, one.reply, one._headers, one.data, one._size, one._is_open, one._ack_frame(b"+ACK")


def lines(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Walk what a NATS server sends; between the lines, subscriptions are opened and closed."""
    options, *rest = chunks
    walker = twin.NatsWalker(MAX_MESSAGE)
    open_as(walker, twin, nats.SIDS[0], option(options, 0))
    log: list[Any] = []

    held, cut = b"", option(options, 1, 48)
    for chunk in rest:
        action = option(chunk, 0) >> 3 & 7
        act(walker, twin, action, chunk)
        held += nats.frame(chunk)
        if action & 1:
            walked_over(walker, held[: len(held) - cut], log, exact)
        else:
            fed(walker, exact(held[: len(held) - cut]), log, messages)
        held = held[max(len(held) - cut, 0) :]
    fed(walker, exact(held), log, messages)
    return log


def open_as(walker: Any, twin: Any, sid: int, how: int) -> None:
    if how % 3 == 0:
        walker.open_delivered(sid, twin.Delivered, None, STATUSES, how % 2 == 1)
    else:
        walker.open(sid, how % 3 == 1)


def act(walker: Any, twin: Any, action: int, chunk: bytes) -> None:
    sid = nats.SIDS[option(chunk, 0) >> 6]
    if action in (1, 2, 3):
        open_as(walker, twin, sid, action)
    elif action == 4:
        walker.close(sid)
    elif action in (5, 6):
        walker.reset()
        if action == 6:
            walker.skip(option(chunk, 1))
    elif action == 7 and option(chunk, 1) > 250:
        walker.pass_all()


def lines_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    walker = twin.NatsWalker(MAX_MESSAGE)
    open_as(walker, twin, nats.SIDS[0], option(chunks[0], 0))
    open_as(walker, twin, nats.SIDS[1], 1)
    data, log = b"".join(map(nats.frame, chunks[1:])), list[Any]()
    for at in range(0, len(data), step):
        fed(walker, data[at : at + step], log, messages)
    taken: dict[int, list[Any]] = {}
    for runs, _ in log:
        for sid, _, found, _ in runs:
            taken.setdefault(sid, []).extend(found)
    return taken, b"".join(left for _, left in log)


def seeds_of_lines() -> Iterator[Chunks]:
    reply = b"$JS.ACK.s.c.1.2.2.17.0"
    block = b"NATS/1.0\r\nk: v\r\n\r\n"
    sent = [
        nats.chunk(b"a", reply, b"", b"one"),
        nats.chunk("\u00e9".encode(), reply, block, b"two"),
        nats.chunk(b"a.b", b"", b"", b"three"),
        nats.chunk(STATUSES + b"1", b"", b"NATS/1.0 408\r\n\r\n"),
        nats.chunk(b"a", b"\xff", b"", b"x"),
        nats.chunk(b"a", reply, b"", b"other", form=0x40),
        *(b"\6" + line for line in (b"PING", b"PONG", b"+OK", b"-ERR 'x'", b"INFO {}")),
    ]
    for options in range(6):
        yield [bytes((options, options * 7)), *sent[options:], *sent[:options]]
        for action in range(8):
            chunk = sent[options % 3]
            yield [
                bytes((options, action)),
                sent[0],
                bytes((chunk[0] | action << 3,)) + chunk[1:],
                *sent[1:4],
            ]
    yield [b"\0\0", b"\0a|" + reply + b"||" + b"x" * 61, sent[0]]


TARGETS = (
    Target("frames", "_fastframes", frames, seeds_of_frames, (DATA,), flow=frames_flow),
    Target(
        "lines", "_fastframes", lines, seeds_of_lines, nats.WORDS, format=PUBLISHES, bars=3, flow=lines_flow
    ),
    QUEUE,
    ORDERED,
)
