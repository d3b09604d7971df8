"""What servers rarely do, and can't be made to: by a script in their place."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope._pb import api_pb2
from liftenvelope.bulk import Access, ServerProtocolError, _liftbridge
from liftenvelope.bulk._nats_socket import NatsSocket
from liftenvelope.bulk.access import find_target
from liftenvelope.errors import CallTimeoutError, PermissionDeniedError, StreamDeletedError, TransportError
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import ScriptedBroker, StandingStill, scripted

INFO = b'INFO {"max_payload": 1048576, "headers": true}\r\n'
PUB = re.compile(rb"PUB (\S+) (?:(\S+) )?(\d+)\r\n")

#: Retention closes a segment before it takes it off the list.
CLOSED = RpcError(StatusCode.INTERNAL, "Failed to create stream reader: segment has been closed")

#: Returns what the server sends for a subject, a reply subject and a subscription.
Script = Callable[[bytes, bytes, int], bytes]


def msg(subject: bytes, sid: int, payload: bytes) -> bytes:
    return b"MSG %b %d %d\r\n%b\r\n" % (subject, sid, len(payload), payload)


@contextmanager
def scripted_nats(script: Script, greeting: bytes = INFO) -> Iterator[str]:
    """The URL of a server for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening, script, greeting))
        thread.start()
        yield f"nats://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(60)


def serve(listening: socket.socket, script: Script, greeting: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(greeting)
        data, sids = b"", dict[bytes, int]()
        while piece := receive(connection):
            data += piece
            while b"\r\n" in data:
                line = data.split(b"\r\n", 1)[0] + b"\r\n"
                found = PUB.fullmatch(line)
                size = len(line) + (int(found[3]) + 2 if found else 0)
                if len(data) < size:
                    break
                data = data[size:]
                if line == b"PING\r\n":
                    connection.sendall(b"PONG\r\n")
                elif line.startswith(b"SUB "):
                    _, subject, sid = line.split()
                    sids[subject.rpartition(b".")[0]] = int(sid)
                elif found and found[2]:
                    connection.sendall(script(found[1], found[2], sids[found[2].rpartition(b".")[0]]))


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionError:
        return b""


def stream_info(reply: bytes, sid: int) -> bytes:
    return msg(reply, sid, json.dumps({"state": {"first_seq": 1, "last_seq": 0}, "config": {}}).encode())


def test_acks_behind_other_lines() -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if subject.startswith(b"$JS.API"):
            return stream_info(reply, sid)
        return b"PING\r\n" + msg(reply, sid, b'{"stream":"S","seq":1}') + b"+OK\r\n"

    with scripted_nats(script) as url:
        table = pa.table({"value": [b"x"] * 5})
        assert bulk.write(url, "S", table, subject="s", access=Access(timeout=20)).acked == 5


def test_an_answer_that_does_not_come() -> None:
    with scripted_nats(lambda *_: b"") as url, pytest.raises(CallTimeoutError, match=r"STREAM\.INFO"):
        bulk.read(url, "S", access=Access(timeout=0.2))


@pytest.mark.parametrize(
    ("greeting", "error", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ServerProtocolError, "HTTP/1.1 400"),
        (b"INFO {\r\n", ServerProtocolError, "INFO is no JSON"),
        (INFO + b"-ERR 'Authorization Violation'\r\n", PermissionDeniedError, "that it knows$"),
        (INFO + b"-ERR 'Stale Connection'\r\n", TransportError, "Stale Connection$"),
        (b'INFO {"tls_required": true}\r\n', TransportError, "TLS"),
    ],
)
def test_greetings(greeting: bytes, error: type[Exception], text: str) -> None:
    with scripted_nats(lambda *_: b"", greeting) as url:
        target = find_target(url, Access(connect_timeout=5))
        with pytest.raises(error, match=text):
            NatsSocket(target.addresses[0], target)


def test_a_server_that_is_about_to_stop() -> None:
    with scripted_nats(lambda _, reply, sid: b'INFO {"ldm": true}\r\n' + stream_info(reply, sid)) as url:
        target = find_target(url, None)
        link = NatsSocket(target.addresses[0], target)
        before = link.leaving
        link.ask("$JS.API.STREAM.INFO.S")
        assert (before, link.leaving) == (False, True)
        link.close()


class Forgetful:
    """A broker that knows its partition no more once it is read; it remembers after some calls, or never."""

    def __init__(self, broker: ScriptedBroker, calls: int) -> None:
        self._broker = broker
        self._left = calls
        broker.log(*range(5))
        broker.always("Subscribe", self._subscribe)

    async def _subscribe(self, call: ServerCall, request: bytes) -> None:
        asked = api_pb2.SubscribeRequest.FromString(request)
        if asked.stopOffset < 0 or not self._left:  # a question where the log begins
            return await self._broker._subscribe(call, request)
        self._left -= 1
        missing = RpcError(StatusCode.NOT_FOUND, "No such partition")
        self._broker.next("FetchPartitionMetadata", missing)
        raise missing


async def test_a_broker_that_has_just_started_knows_no_partitions() -> None:
    """Seen of Liftbridge: it answers before it has read its own log."""
    async with scripted() as brokers:
        Forgetful(brokers[0], calls=2)
        reader = await asyncio.to_thread(bulk.read, brokers[0].address, "foo", start=0)
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == list(range(5))


async def test_a_partition_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_liftbridge, "_GONE_AFTER", 0.3)
    async with scripted() as brokers:
        Forgetful(brokers[0], calls=1_000_000)
        reader = await asyncio.to_thread(bulk.read, brokers[0].address, "foo", start=0)
        with pytest.raises(StreamDeletedError, match="the stream is gone"):
            await asyncio.to_thread(reader.read_all)


@pytest.mark.parametrize("refusal", [None, CLOSED, RpcError(StatusCode.UNAVAILABLE, "draining")])
async def test_a_broker_that_stands_still_is_not_taken_for_an_empty_log(refusal: RpcError | None) -> None:
    async with scripted() as brokers:
        StandingStill(brokers[0], refusal)
        reader = await asyncio.to_thread(bulk.read, brokers[0].address, "foo")
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == list(range(5))


async def test_what_is_newest_is_waited_for_while_a_broker_stands_still() -> None:
    async with scripted() as (broker,):
        log = broker.log(*range(6), high_watermark=3)

        async def stand_still(call: ServerCall, request: bytes) -> bytes:
            await asyncio.sleep(1.5)
            answer = await broker._partition(call, request)
            log.high_watermark = 5
            return answer

        broker.next("FetchPartitionMetadata", broker._partition, stand_still)
        reader = await asyncio.to_thread(bulk.read, broker.address, "foo")
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == list(range(6))
