"""Reads and writes against a scripted server, for answers that a real server can't be made to send."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope._pb import api_pb2
from liftenvelope.bulk import Access, ServerProtocolError
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.bulk._liftbridge import source as liftbridge_source
from liftenvelope.bulk.access import find_target
from liftenvelope.client.positions import Timestamp
from liftenvelope.errors import (
    CallTimeoutError,
    PermissionDeniedError,
    StreamDeletedError,
    TransportError,
    UnsupportedByServerError,
)
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import ScriptedBroker, StandingStill, TimesLost, scripted

#: What nats-server 2.15.1 was seen to send, but for its names, keys and ports.
INFO = (
    b'INFO {"server_id":"NSCRIPTED","server_name":"scripted","version":"2.15.1","proto":1,'
    b'"git_commit":"b2fd3ef","go":"go1.27.2","host":"127.0.0.1","port":4222,"headers":true,'
    b'"max_payload":1048576,"jetstream":true,"client_id":6,"client_ip":"127.0.0.1",'
    b'"api_lvl":5,"xkey":"XSCRIPTED"} \r\n'
)
#: Sent after the PONG that answers CONNECT.
CONNECTED = INFO.replace(b'"api_lvl"', b'"connect_info":true,"remote_account":"$G","api_lvl"')
LAME_DUCK = INFO.replace(b'"api_lvl"', b'"ldm":true,"api_lvl"')
STREAM_INFO = (
    b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,'
    b'"config":{"name":"S","subjects":["s"],"retention":"limits","max_consumers":-1,"max_msgs":-1,'
    b'"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old",'
    b'"storage":"file","num_replicas":1,"duplicate_window":120000000000,"compression":"none",'
    b'"allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,'
    b'"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,"metadata":'
    b'{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}},'
    b'"created":"2026-11-22T11:33:47.261543417Z","state":{"messages":0,"bytes":0,"first_seq":0,'
    b'"first_ts":"0001-01-01T00:00:00Z","last_seq":0,"last_ts":"0001-01-01T00:00:00Z",'
    b'"consumer_count":0},"cluster":{"leader":"scripted"},"ts":"2026-11-22T11:33:48.69183133Z"}'
)
#: The SETTINGS frame that Liftbridge 1.9.0 sends to each new connection. It has no line end.
HTTP2 = bytes.fromhex("000006 04 00 00000000 0005 00004000")
PUB = re.compile(rb"PUB (\S+) (?:(\S+) )?(\d+)\r\n")

#: Retention closes a segment before it takes it off the list.
CLOSED = RpcError(StatusCode.INTERNAL, "Failed to create stream reader: segment has been closed")

#: Returns what the server sends for a subject, a reply subject and a subscription.
Script = Callable[[bytes, bytes, int], bytes]


def msg(subject: bytes, sid: int, payload: bytes) -> bytes:
    return b"MSG %b %d %d\r\n%b\r\n" % (subject, sid, len(payload), payload)


@contextmanager
def scripted_nats(script: Script, greeting: bytes = INFO, refusal: bytes | None = None) -> Iterator[str]:
    """The URL of a server for one connection. It answers CONNECT with the refusal, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening, script, greeting, refusal))
        thread.start()
        yield f"nats://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(60)


def serve(listening: socket.socket, script: Script, greeting: bytes, refusal: bytes | None) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(greeting)
        if refusal is not None:
            receive(connection)
            connection.sendall(refusal)
            return
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
                    connection.sendall(b"PONG\r\n" + CONNECTED)
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
    return msg(reply, sid, STREAM_INFO)


def test_acks_behind_other_lines() -> None:
    sequences = count(1)

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if subject.startswith(b"$JS.API"):
            return stream_info(reply, sid)
        return b"PING\r\n" + msg(reply, sid, b'{"stream":"S","seq":%d}' % next(sequences)) + CONNECTED

    with scripted_nats(script) as url:
        table = pa.table({"value": [b"x"] * 5})
        assert bulk.write(url, "S", table, subject="s", access=Access(timeout=20)).acked == 5


def test_an_answer_that_does_not_come() -> None:
    with scripted_nats(lambda *_: b"") as url, pytest.raises(CallTimeoutError, match=r"STREAM\.INFO"):
        bulk.read(url, "S", access=Access(timeout=0.2))


@pytest.mark.parametrize(
    ("greeting", "refusal", "error", "text"),
    [
        (HTTP2, b"", ServerProtocolError, "gRPC server greets, which has another port$"),
        (
            b"INFO {\r\n",
            b"",
            ServerProtocolError,
            "INFO can't be read .JSONDecodeError",
        ),  # not seen of any server
        (
            INFO.replace(b'"max_payload"', b'"auth_required":true,"max_payload"'),
            b"-ERR 'Authorization Violation'\r\n",
            PermissionDeniedError,
            "refused the login: check the user and password, the token or the credentials$",
        ),
        (INFO + b"-ERR 'maximum connections exceeded'\r\n", b"", TransportError, "connections exceeded$"),
        # nats-server also closes a connection whose TLS handshake fails.
        (INFO.replace(b'"max_payload"', b'"tls_required":true,"max_payload"'), b"", TransportError, "TLS"),
    ],
    ids=["http2", "no json", "unknown user", "too many connections", "tls"],
)
def test_greetings(greeting: bytes, refusal: bytes, error: type[Exception], text: str) -> None:
    with scripted_nats(lambda *_: b"", greeting, refusal) as url:
        target = find_target(url, Access(connect_timeout=60))
        with pytest.raises(error, match=text):
            NatsSocket(target.addresses[0], target)


def test_a_server_that_is_about_to_stop() -> None:
    with scripted_nats(lambda _, reply, sid: LAME_DUCK + stream_info(reply, sid)) as url:
        target = find_target(url, None)
        link = NatsSocket(target.addresses[0], target)
        before = link.leaving
        link.ask(dict, "$JS.API.STREAM.INFO.S")
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


async def test_a_broker_that_has_just_started_is_asked_again_before_a_read() -> None:
    """A writer of a table ended for it once, in the fault campaign."""
    async with scripted() as brokers:
        brokers[0].log(*range(5))
        for _ in range(5):
            brokers[0].next("FetchPartitionMetadata", RpcError(StatusCode.NOT_FOUND, "partition not found"))
        reader = await asyncio.to_thread(bulk.read, brokers[0].address, "foo", start=0)
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == list(range(5))


async def test_a_partition_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liftbridge_source, "_GONE_AFTER", 0.3)
    async with scripted() as brokers:
        Forgetful(brokers[0], calls=1_000_000)
        reader = await asyncio.to_thread(bulk.read, brokers[0].address, "foo", start=0)
        with pytest.raises(StreamDeletedError, match="the stream is gone"):
            await asyncio.to_thread(reader.read_all)


@pytest.mark.parametrize(
    "refusal",
    [
        None,
        CLOSED,
        RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"),
        RpcError(StatusCode.OK, "the server is stopping"),
    ],
)
async def test_a_broker_that_stands_still_is_not_taken_for_an_empty_log(refusal: RpcError | None) -> None:
    async with scripted() as brokers:
        StandingStill(brokers[0], refusal)
        reader = await asyncio.to_thread(bulk.read, brokers[0].address, "foo")
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == list(range(5))


async def test_start_by_time_is_looked_up_again_after_failures() -> None:
    async with scripted() as (broker,):
        TimesLost(broker)
        # The lookup of the oldest message fails twice, and then that of the time.
        broker.next("Subscribe", CLOSED, broker.drop_at, broker._subscribe, CLOSED, broker.drop_at)
        reader = await asyncio.to_thread(bulk.read, broker.address, "foo", start=Timestamp(2500))
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == [3, 4]


async def test_write_gives_up_on_a_leader_that_closes_every_connection() -> None:
    """A proxy whose server is gone does so."""
    closed = 0

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        closed += 1
        writer.close()

    data, access = pa.table({"value": ["a"]}), Access(timeout=60.0, reconnect_wait=3.0)
    async with scripted() as (broker,), await asyncio.start_server(close, "127.0.0.1", 0) as proxy:
        broker.log()
        broker.advertised = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        with pytest.raises(TransportError, match="the publish stream ended: ") as caught:
            await asyncio.to_thread(bulk.write, broker.address, "foo", data, access=access)
    assert not caught.value.sent
    assert 2 <= closed <= 100


async def test_what_is_newest_is_waited_for_while_a_broker_stands_still() -> None:
    async with scripted() as (broker,):
        log = broker.log(*range(6), high_watermark=3)

        async def stand_still(call: ServerCall, request: bytes) -> bytes:
            try:
                await asyncio.sleep(1.5)
                return await broker._partition(call, request)
            finally:  # also if a busy machine made the client give up the call
                log.high_watermark = 5

        broker.next("FetchPartitionMetadata", broker._partition, stand_still)
        reader = await asyncio.to_thread(bulk.read, broker.address, "foo")
        assert (await asyncio.to_thread(reader.read_all))["offset"].to_pylist() == list(range(6))


def test_backup_of_a_newer_server_is_not_sent_to_an_older_one() -> None:
    backup = Path(__file__).parents[2] / "integration" / "bulk" / "backups" / "nats-2.15"
    old, text = INFO.replace(b"2.15.1", b"2.14.6"), r"needs nats-server 2\.15 or later, got 2\.14\.6"
    with (
        scripted_nats(lambda *_: b"", old) as url,
        pytest.raises(UnsupportedByServerError, match=text),
    ):
        bulk.restore_backup(backup, url)
