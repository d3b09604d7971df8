"""Frames and messages under random bytes, for as long as wanted: ``python -m tests.fuzz.frames_campaign``.

    python tests/fuzz/sanitized.py run -m tests.fuzz.frames_campaign    # `make soak`: under ASan and UBSan

Both twins must find the same in whatever comes, however it is divided; a connection of either side must take
it without any error but those that it is made to raise; and what is taken out of a NATS connection must be
what nats-py would have found there.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from typing import Any

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from liftenvelope import _fastwire, _frames_py
from liftenvelope.rpc.client_side import ClientConnection
from liftenvelope.rpc.events import CallStarted, MessagesReceived
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server_side import ServerConnection
from tests.fuzz import twin_targets

MAX_FRAME, MAX_MESSAGE = 200, 60
#: What the subjects begin with of messages that are left, as statuses are, where they have no reply.
STATUSES = b"a."
METHOD = "/test/fuzz"


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def message(choice: random.Random) -> bytes:
    body = choice.randbytes(choice.choice([0, 1, 5, 30, MAX_MESSAGE, MAX_MESSAGE + 1]))
    flag = 1 if choice.random() < 0.02 else 0
    return bytes([flag]) + len(body).to_bytes(4, "big") + body


def stream_bytes(choice: random.Random) -> bytes:
    """Frames that are mostly sound, with messages that mostly are, cut and spoiled now and then."""
    parts = []
    for _ in range(choice.randrange(1, 12)):
        kind = choice.choice([0, 0, 0, 0, 0, 1, 3, 4, 5, 6, 7, 8, 9, choice.randrange(256)])
        flags = choice.choice([0, 0, 0, 0, 1, 4, 5, 8, choice.randrange(256)])
        payload = b"".join(message(choice) for _ in range(choice.randrange(4)))
        payload = payload[choice.choice([0, 0, 0, 1]) : choice.choice([MAX_FRAME, MAX_FRAME, 30, 3])]
        parts.append(frame(kind, flags, choice.choice([0, 1, 1, 3, 5, 7, 0x80000001]), payload))
    data = bytearray(b"".join(parts))
    for _ in range(choice.choice([0, 0, 0, 1, 3])):
        if data:
            data[choice.randrange(len(data))] = choice.randrange(256)
    return bytes(data[: len(data) - choice.choice([0, 0, 0, 1, 7])])


def pieces(choice: random.Random, data: bytes) -> list[bytes]:
    size = choice.choice([1, 3, 9, 50, len(data) + 1])
    return [data[start : start + size] for start in range(0, len(data), size)]


def walk_twins(choice: random.Random) -> None:
    """Have both twins walk the same bytes."""
    preface = choice.choice([0, 0, 24])
    walkers: list[Any] = [m.FrameWalker(MAX_FRAME, MAX_MESSAGE, preface) for m in (_frames_py, _fastwire)]
    whole = choice.random() < 0.3
    cutters = [walker.open(1, pieces=whole) for walker in walkers]
    for piece in pieces(choice, stream_bytes(choice) + stream_bytes(choice)):
        for walker in walkers:
            walker.feed(piece)
        rest = b"-"
        while rest:
            ours, theirs = (walker.walk() for walker in walkers)
            assert ours == theirs
            rest = ours[1]
            action, stream_id = choice.choice(["open", "mute", "close", ""]), choice.choice([3, 5])
            for walker in walkers:
                if action:
                    getattr(walker, action)(stream_id)
    states = [(cutter.fault, cutter.fault_value, cutter.inside_message) for cutter in cutters]
    assert states[0] == states[1]
    assert walkers[0].oversize == walkers[1].oversize


def feed_client(choice: random.Random) -> None:
    """Have a client take the bytes, in the middle of calls."""
    client = ClientConnection("fuzz", max_message=MAX_MESSAGE, window=5_000)
    for _ in range(3):
        call_id = client.start_call(METHOD, pieces=choice.random() < 0.3)
        client.send(call_id, [b"x" * choice.choice([1, 1, 70_000])])
        client.half_close(call_id)
    client.data_to_send()
    settings = frame(4, 0, 0, b"")
    # HPACK: ":status: 200" of the static table; "content-type" needs none.
    opened = b"".join(frame(1, 4, call_id, b"\x88") for call_id in (1, 3))
    client.feed(settings + opened)
    for piece in pieces(choice, stream_bytes(choice)):
        for event in client.feed(piece):
            if isinstance(event, MessagesReceived):
                client.release(event.call_id, event.size)
        client.data_to_send()


def feed_server(choice: random.Random) -> None:
    """Have a server take the bytes of a client whose call has begun."""
    limits = ServerLimits(max_request_bytes=MAX_MESSAGE, max_unread_bytes_per_call=5_000)
    server, client = ServerConnection(limits=limits), ClientConnection("fuzz")
    client.start_call(METHOD, metadata=[("x-bin", b"\x01")])
    if choice.random() < 0.9:
        server.feed(client.data_to_send())
    for piece in pieces(choice, stream_bytes(choice)):
        for event in server.feed(piece):
            if isinstance(event, MessagesReceived):
                server.release(event.call_id, event.size)
                server.send(event.call_id, event.messages)
            elif isinstance(event, CallStarted):
                server.finish(event.call_id, 5, "no")
        server.data_to_send()


def nats_bytes(choice: random.Random) -> bytes:
    """What a NATS server sends, mostly."""
    parts = []
    for _ in range(choice.randrange(1, 12)):
        body = choice.randbytes(choice.choice([0, 1, 5, 30, MAX_MESSAGE, MAX_MESSAGE + 1]))
        line = b"%b %d %b" % (
            choice.choice([b"a", b"a.b", "\u00e9".encode()]),
            choice.choice([1, 1, 1, 2, 3]),
            choice.choice([b"", b"r "]),
        )
        block = b"NATS/1.0\r\nk: v\r\n\r\n"
        parts += choice.choice(
            [
                [b"MSG %b%d\r\n%b\r\n" % (line, len(body), body)],
                [b"HMSG %b%d %d\r\n%b%b\r\n" % (line, len(block), len(block) + len(body), block, body)],
                [choice.choice([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b"INFO {}\r\n"])],
            ]
        )
    return b"".join(parts)


def spoiled(choice: random.Random, data: bytes) -> bytes:
    """The bytes, some of them changed, dropped or doubled."""
    changed = bytearray(data)
    for _ in range(choice.choice([0, 1, 1, 3])):
        at = choice.randrange(len(changed) + 1)
        changed[at : at + choice.randrange(3)] = choice.choice(
            [b"", b"\r\n", b" ", b"9", choice.randbytes(2)]
        )
    return bytes(changed)


def walk_nats_twins(choice: random.Random) -> None:
    """Have both twins walk the same bytes of a NATS connection."""
    walkers: list[Any] = [m.NatsWalker(MAX_MESSAGE) for m in (_frames_py, _fastwire)]
    for piece in pieces(choice, spoiled(choice, nats_bytes(choice)) + nats_bytes(choice)):
        action = choice.choice(
            ["open", "open_delivered"] * 3 + ["close", "skip", "reset", "pass_all"] + [""] * 20
        )
        for walker, twin in zip(walkers, (_frames_py, _fastwire), strict=True):
            if action == "skip":
                walker.reset()  # only the first bytes can be skipped
            if action:
                delivered = (twin.Delivered, None, STATUSES) if action == "open_delivered" else ()
                getattr(walker, action)(*([] if action in ("reset", "pass_all") else [1, *delivered]))
            walker.feed(piece)
        left = b"-"
        while left:
            ours, theirs = (walker.walk() for walker in walkers)
            assert [(sid, size, fields(messages)) for sid, size, messages in ours[0]] == [
                (sid, size, fields(messages)) for sid, size, messages in theirs[0]
            ]
            assert ours[1] == theirs[1]
            left = ours[1]


def fields(messages: list[Any]) -> list[Any]:
    """What messages say, whether they are tuples or objects."""
    return [
        one
        if isinstance(one, tuple)
        else (one.subject, one.reply.encode(), one._headers, one.data, one._size)
        for one in messages
    ]


class Seen(list[Any]):
    """What nats-py's parser finds: stands where it expects its client."""

    async def _process_msg(self, *message: Any) -> None:
        self.append(message)

    async def _process_ping(self) -> None:
        self.append("ping")

    async def _process_pong(self) -> None:
        self.append("pong")

    async def _process_err(self, text: str) -> None:
        self.append(text)

    async def _process_info(self, info: Any) -> None:
        self.append(info)


def parse(parser: Parser, data: bytes) -> None:
    """Run nats-py's parser, which waits for nothing here, without an event loop."""
    try:
        parser.parse(data).send(None)
    except StopIteration:
        return


def walk_beside_nats_py(choice: random.Random) -> None:
    """Have nats-py find the same messages, in the same order, with a walker before it and without."""
    data = nats_bytes(choice) + choice.choice([b"", b"MSG a 1 x\r\n", b"oops\r\n", b"\r\n"])
    alone, behind = Seen(), Seen()
    parsers = [Parser(alone), Parser(behind)]
    twin: Any = choice.choice([_frames_py, _fastwire])
    walker = twin.NatsWalker(choice.choice([MAX_MESSAGE, 10_000]))
    if choice.random() < 0.5:
        walker.open(1)
    else:
        walker.open_delivered(1, twin.Delivered, None, STATUSES)
    for piece in pieces(choice, data):
        ends = []
        for parser, steps in zip(parsers, ([piece], through(walker, piece, behind)), strict=True):
            try:
                for step in steps:
                    parse(parser, step)
            except ProtocolError as error:
                ends.append(str(error))
        assert alone == behind
        assert len(ends) in (0, 2)
        if ends:
            break


def through(walker: Any, piece: bytes, seen: Seen) -> Iterator[bytes]:
    """Have the walker take its part of the bytes, and give the rest."""
    walker.feed(piece)
    left = b"-"
    while left:
        taken, left = walker.walk()
        for sid, _, messages in taken:
            seen += [
                (sid, text.encode(), reply, body, block) for text, reply, block, body, *_ in fields(messages)
            ]
        yield left


TARGETS = (
    walk_twins,
    feed_client,
    feed_server,
    walk_nats_twins,
    walk_beside_nats_py,
    *twin_targets.TARGETS,
)


def run(inputs: int, seed: int, seconds: float = float("inf")) -> int:
    """Feed up to so many inputs to each target, for so long; return how many it were."""
    end, done = time.monotonic() + seconds, 0
    while done < inputs and time.monotonic() < end:
        for target in TARGETS:
            try:
                target(random.Random(f"{seed}:{done}"))
            except BaseException as exc:
                exc.add_note(f"{target.__name__} with random.Random({f'{seed}:{done}'!r})")
                raise
        done += 1
    return done


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    print(f"{run(options.inputs, options.seed)} inputs for each of {len(TARGETS)} targets: no fault")


if __name__ == "__main__":
    main()
