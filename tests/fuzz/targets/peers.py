"""Whole connections: client and server of gRPC on h2, and nats-py's parser behind the walker.

h2 and nats-py are Python and up to 100 times slower than the extensions: one input in 100 goes to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._events import CallStarted, MessagesReceived
from liftenvelope.rpc._server_side import ServerConnection
from liftenvelope.rpc.limits import ServerLimits
from tests.fuzz.target import PUBLISHES, Chunks, Exact, Target, cuts_of, option
from tests.fuzz.targets import nats, wire
from tests.fuzz.targets.frames import DATA, MAX_MESSAGE, frame_of, seeds_of_frames
from tests.sinks import RecordingSink

__all__ = ["TARGETS"]

SHARE = 100
METHOD = "/test/fuzz"
#: Empty SETTINGS; then HEADERS with ":status: 200" of HPACK's static table on streams 1 and 3.
OPENED = bytes.fromhex("0000000400000000000000010104000000018800000101040000000388")


def pieces(chunks: Chunks) -> list[bytes]:
    data, found, start = b"".join(map(frame_of, chunks[1:])), list[bytes](), 0
    for end in cuts_of(data, chunks[0]):
        found.append(data[start:end])
        start = end
    return found


def client(_twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """A client takes the bytes in the middle of calls: it may end the connection, and raises nothing."""
    options = chunks[0]
    side = ClientConnection("fuzz", max_message=MAX_MESSAGE, window=5_000)
    for i in range(3):
        call_id = side.start_call(METHOD, sink=RecordingSink() if option(options, 1) >> i & 1 else None)
        side.send(call_id, [b"x" * (70_000 if option(options, 2) >> i & 1 else 1)])
        side.half_close(call_id)
    side.data_to_send()
    side.feed(OPENED)
    log = []
    for piece in pieces(chunks):
        for event in side.feed(exact(piece)):
            log.append(type(event).__name__)
            if isinstance(event, MessagesReceived):
                side.release(event.call_id, event.size)
        side.data_to_send()
    return log


def server(_twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """A server takes the bytes of a client whose call has begun."""
    limits = ServerLimits(max_request_bytes=MAX_MESSAGE, max_unread_bytes_per_call=5_000)
    side, peer = ServerConnection(limits=limits), ClientConnection("fuzz")
    peer.start_call(METHOD, metadata=[("x-bin", b"\x01")])
    if option(chunks[0], 1, 8):
        side.feed(peer.data_to_send())
    log = []
    for piece in pieces(chunks):
        for event in side.feed(exact(piece)):
            log.append(type(event).__name__)
            if isinstance(event, MessagesReceived):
                side.release(event.call_id, event.size)
                side.send(event.call_id, event.messages)
            elif isinstance(event, CallStarted):
                side.finish(event.call_id, 5, "no")
        side.data_to_send()
    return log


#: Frames that nats-py 2.16 misreads: without a reply subject, and with headers that begin with a number and a
#: line end. Its pattern lets a line end between two numbers: it takes that one for the size of the message.
MISREAD: Final = re.compile(rb"HMSG \S+ \S+ \d+ \d+\r\n\s*\d+\r\n")


class Seen(list[Any]):
    """Records the messages that nats-py's parser finds, in place of its client."""

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


def parse(parser: Parser, data: bytes) -> str | None:
    """Run nats-py's parser, which waits for nothing here, without an event loop; returns its error."""
    try:
        parser.parse(data).send(None)
    except StopIteration:
        return None
    except ProtocolError as error:
        return str(error)
    raise AssertionError("the parser waits")


def beside_nats_py(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """nats-py finds the same messages in the same order with a walker before it and without."""
    options, *rest = chunks
    alone, behind = Seen(), Seen()
    first, second = Parser(alone), Parser(behind)
    walker = twin.NatsWalker(MAX_MESSAGE if option(options, 1, 2) else 10_000)
    wire.open_as(walker, twin, nats.SIDS[0], option(options, 2, 2) * 2)
    frames = [nats.frame(chunk) for chunk in rest if option(chunk, 0) & 7 < nats.WRONG]
    start, data = 0, b"".join(frame for frame in frames if not MISREAD.match(frame))
    for end in cuts_of(data, options):
        piece, start = exact(data[start:end]), end
        ends = [parse(first, piece), through(walker, piece, behind, second)]
        if alone != behind or ends[0] != ends[1]:
            raise AssertionError(
                f"nats-py finds {alone} {ends[0]} alone, {behind} {ends[1]} behind the walker"
            )
        if ends[0]:
            break
    return list(alone)


def through(walker: Any, piece: bytes, seen: Seen, parser: Parser) -> str | None:
    """Have the walker take its part of the bytes, and the parser the rest."""
    walker.feed(piece)
    left, error = b"-", None
    while left and not error:
        taken, left = walker.walk()
        for sid, _, found in taken:
            seen += [message_of(sid, one) for one in found]
        error = parse(parser, left)
    return error


def message_of(sid: int, one: Any) -> tuple[Any, ...]:
    """A message as nats-py's parser hands it to its client."""
    subject, reply, headers, data = (
        one if isinstance(one, tuple) else (one.subject, one.reply.encode(), one._headers, one.data)
    )
    return sid, subject.encode(), reply, data, headers


def seeds_of_lines() -> Iterator[Chunks]:
    for chunks in wire.seeds_of_lines():
        yield [chunks[0], *(chunk for chunk in chunks[1:] if len(chunk) > 1)]


TARGETS = (
    Target("client", "_fastframes", client, seeds_of_frames, (DATA,), share=SHARE),
    Target("server", "_fastframes", server, seeds_of_frames, (DATA,), share=SHARE),
    Target(
        "nats-py",
        "_fastframes",
        beside_nats_py,
        seeds_of_lines,
        nats.WORDS,
        format=PUBLISHES,
        bars=3,
        share=SHARE,
    ),
)
