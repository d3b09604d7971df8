"""Frames and messages under random bytes, for as long as wanted: ``python -m tests.fuzz.frames_campaign``.

Both twins must find the same in whatever comes, however it is divided; and a connection of either side must
take it without any error but those that it is made to raise.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from liftenvelope import _fastwire, _frames_py
from liftenvelope.rpc.client_side import ClientConnection
from liftenvelope.rpc.events import CallStarted, MessagesReceived
from liftenvelope.rpc.server_side import ServerConnection

MAX_FRAME, MAX_MESSAGE = 200, 60
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
    cutters = [walker.open(1) for walker in walkers]
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
        call_id = client.start_call(METHOD)
        client.send(call_id, [b"x"])
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
    server, client = ServerConnection(max_message=MAX_MESSAGE, window=5_000), ClientConnection("fuzz")
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


TARGETS = (walk_twins, feed_client, feed_server)


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
