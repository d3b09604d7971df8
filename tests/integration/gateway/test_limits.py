"""Every limit of a gateway, at the limit and one above it, by what a client sees."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

import pytest
import trustme
from h2 import events
from h2.exceptions import FlowControlError
from h2.settings import SettingCodes
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import new_message, unmarshal_ack, unmarshal_message
from liftenvelope.errors import TransportError
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._program.http import GatewayMonitor, HttpServer
from liftenvelope.gateway._protocol.failures import TOO_LARGE
from liftenvelope.jetstream import JetStream
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, NatsServer, run_gateway, run_nats_server
from tests.handled import handled
from tests.integration.certificates import client_tls, server_tls
from tests.integration.conftest import connect, until
from tests.integration.gateway.http_client import exchange, get
from tests.integration.gateway.raw_http2 import RawClient

PATIENCE = 120.0
API, CHECK, WATCH = "/proto.API/", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
EXHAUSTED = StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def own_nats() -> Iterator[NatsServer]:
    """A server whose streams are those of this file alone: quotas count them."""
    with run_nats_server(jetstream=True) as server:
        yield server


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@dataclass(frozen=True)
class Place:
    """Environment of a case.

    Attributes:
        nats: NATS server of the gateways.
        name: A name that no other test uses.
        ca: Authority of certificates.
        log: Records of the log.
    """

    nats: NatsServer
    name: str
    ca: trustme.CA
    log: pytest.LogCaptureFixture

    @asynccontextmanager
    async def gateway(
        self, *, url: str = "", tls: bool = False, options: dict[str, Any] | None = None, **limits: Any
    ) -> AsyncIterator[Gateway]:
        """A gateway with these limits, by default on a connection of its own to ``nats``."""
        nc = await connect(url or self.nats.url)
        context = server_tls(self.ca) if tls else None
        async with Gateway(nc, tls=context, limits=Limits(**limits), **(options or {})) as gateway:
            yield gateway
        await nc.close()

    def client_tls(self, name: str) -> ssl.SSLContext:
        return client_tls(self.ca, name)


Case = Callable[[Place], Awaitable[None]]
CASES: dict[str, Case] = {}


def case(*limits: str) -> Callable[[Case], Case]:
    """Register what tests a limit, or several."""

    def register(test: Case) -> Case:
        CASES.update(dict.fromkeys(limits, test))
        return test

    return register


@pytest.mark.parametrize("limit", [one.name for one in fields(Limits)])
async def test_limit_holds_at_its_value_and_not_above(
    own_nats: NatsServer,
    ca: trustme.CA,
    name: str,
    caplog: pytest.LogCaptureFixture,
    limit: str,
) -> None:
    await CASES[limit](Place(own_nats, name, ca, caplog))


def test_every_case_is_about_a_limit() -> None:
    assert set(CASES) == {one.name for one in fields(Limits)}


async def outcome(channel: Channel, method: str, request: Any) -> tuple[StatusCode, str]:
    """Status and text that a call ends with."""
    try:
        await channel.unary(API + method, request.SerializeToString(), timeout=PATIENCE)
    except RpcError as error:
        return StatusCode(error.code), error.description
    return StatusCode.OK, ""


async def code(channel: Channel, method: str, request: Any) -> StatusCode:
    """Status that a call ends with."""
    return (await outcome(channel, method, request))[0]


async def closed_after(address: str, greeting: bytes) -> None:
    """Send a greeting, and wait until the gateway closes the connection."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(greeting)
    async with asyncio.timeout(PATIENCE):
        await reader.read()
    writer.close()


# The gRPC server


@case("max_request_bytes")
async def requests(place: Place) -> None:
    limit = 2 << 20
    async with (
        place.gateway(max_request_bytes=limit, max_message_bytes=1) as gateway,
        await Channel.connect(gateway.address) as channel,
    ):
        request = api_pb2.PublishRequest(value=bytes(limit - 4))
        assert request.ByteSize() == limit
        assert await outcome(channel, "Publish", request) == (
            StatusCode.INVALID_ARGUMENT,
            "no stream provided",
        )
        request.value += b"x"
        assert await code(channel, "Publish", request) == EXHAUSTED


@case("max_connections")
async def connections(place: Place) -> None:
    async with place.gateway(max_connections=2) as gateway:
        async with (
            await Channel.connect(gateway.address) as one,
            await Channel.connect(gateway.address) as two,
        ):
            for channel in (one, two):
                assert await channel.server_stream(WATCH, b"").receive()
            await closed_after(gateway.address, b"")
            await one.unary(CHECK, b"", timeout=PATIENCE)

        async def is_let_in() -> bool:
            try:
                async with await Channel.connect(gateway.address) as channel:
                    await channel.unary(CHECK, b"", timeout=PATIENCE)
            except TransportError:
                return False
            return True

        async with asyncio.timeout(PATIENCE):
            while not await is_let_in():
                await asyncio.sleep(0.01)


@case("max_calls_per_connection")
async def calls_of_a_connection(place: Place) -> None:
    async with place.gateway(max_calls_per_connection=2) as gateway:
        for count in (2, 3):
            async with RawClient(gateway.address) as client:
                for _ in range(count):  # before the client has heard of the limit
                    client.h2.send_data(client.start(WATCH), bytes(5), end_stream=True)
                client.send()
                await client.until(lambda client: len(client.of(events.ResponseReceived)) == count)  # noqa: B023
                assert client.ended is (count == 3)
                assert client.h2.remote_settings.max_concurrent_streams == 2


@case("max_calls")
async def calls_of_all_clients(place: Place) -> None:
    async with (
        place.gateway(max_calls=2) as gateway,
        await Channel.connect(gateway.address) as channel,
        await Channel.connect(gateway.address) as other,
    ):
        watches = [channel.server_stream(WATCH, b""), other.server_stream(WATCH, b"")]
        for watch in watches:
            assert await watch.receive()
        assert await outcome(other, "FetchMetadata", api_pb2.FetchMetadataRequest()) == (
            EXHAUSTED,
            "all clients together have 2 calls open: try again later",
        )
        watches[0].cancel()
        async with asyncio.timeout(60):
            while await code(other, "FetchMetadata", api_pb2.FetchMetadataRequest()) == EXHAUSTED:
                await asyncio.sleep(0.01)


@case("max_calls_per_client")
async def calls_of_a_client(place: Place) -> None:
    tls, other_tls = place.client_tls(place.name), place.client_tls(f"{place.name}-other")
    async with (
        place.gateway(tls=True, max_calls_per_client=2) as gateway,
        await Channel.connect(gateway.address, tls=tls) as one,
        await Channel.connect(gateway.address, tls=tls) as two,
        await Channel.connect(gateway.address, tls=other_tls) as other,
    ):
        watches = [channel.server_stream(WATCH, b"") for channel in (one, two)]
        for watch in watches:
            assert await watch.receive()
        refused = await outcome(two, "FetchMetadata", api_pb2.FetchMetadataRequest())
        text = "this client has 2 calls open (limit max_calls_per_client is 2): end some first"
        assert refused == (EXHAUSTED, text)
        assert await code(other, "FetchMetadata", api_pb2.FetchMetadataRequest()) == StatusCode.OK
        watches[0].cancel()
        async with asyncio.timeout(PATIENCE):
            while await code(two, "FetchMetadata", api_pb2.FetchMetadataRequest()) == EXHAUSTED:
                await asyncio.sleep(0.01)


@case("max_unread_bytes_per_call")
async def unread_of_a_call(place: Place) -> None:
    async with (
        place.gateway(max_unread_bytes_per_call=5_000) as gateway,
        RawClient(gateway.address) as client,
    ):
        client.send()
        await client.until(lambda client: client.of(events.RemoteSettingsChanged))
        call = client.start(CHECK)
        # Half of a message, which the gateway can't take yet.
        client.h2.send_data(call, b"\0" + (5_000).to_bytes(4, "big") + bytes(4_995))
        with pytest.raises(FlowControlError):
            client.h2.send_data(call, b"x")


def begin_message(client: RawClient, size: int) -> int:
    """Send as many bytes of a message that is longer; return the call."""
    call = client.start(CHECK)
    head = b"\0" + (1_000_000).to_bytes(4, "big")
    body = head + bytes(size - len(head))
    for start in range(0, size, 16_384):
        client.h2.send_data(call, body[start : start + 16_384])
    return call


@case("max_unread_bytes_per_connection")
async def unread_of_a_connection(place: Place) -> None:
    async with (
        place.gateway(max_unread_bytes_per_connection=60_000) as gateway,
        RawClient(gateway.address) as client,
    ):
        small, large = begin_message(client, 20_000), begin_message(client, 40_000)
        assert await client.ping()
        assert client.status(small) is client.status(large) is None
        client.h2.send_data(small, b"x")
        client.send()
        await client.until(lambda client: client.status(large))
        found = client.status(large)
        assert found is not None
        assert found[0] == EXHAUSTED
        assert "this connection holds more than 60000 bytes unread" in found[1]
        assert await client.ping()
        assert client.status(small) is None


@case("max_unread_bytes")
async def unread_of_all(place: Place) -> None:
    async with (
        place.gateway(max_unread_bytes=60_000) as gateway,
        RawClient(gateway.address) as one,
        RawClient(gateway.address) as other,
    ):
        small, large = begin_message(one, 20_000), begin_message(other, 40_000)
        assert await one.ping()
        assert await other.ping()
        assert one.status(small) is other.status(large) is None
        one.h2.send_data(small, b"x")
        one.send()
        await other.until(lambda client: client.status(large))
        found = other.status(large)
        assert found is not None
        assert found[0] == EXHAUSTED
        assert "all clients together hold more than 60000 bytes unread" in found[1]
        assert await one.ping()
        assert one.status(small) is None


def metadata_request(chars: int) -> bytes:
    """Ask for a stream that does not exist: the answer repeats its name."""
    return api_pb2.FetchMetadataRequest(streams=["s" * chars]).SerializeToString()


async def leave_answer(client: RawClient, chars: int) -> int:
    """Make a call whose answer has a name of as many characters; wait until it is queued."""
    call, request = client.start(API + "FetchMetadata"), metadata_request(chars)
    client.h2.send_data(call, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
    client.send()
    # Flow control stops the message and not its headers.
    await client.until(
        lambda client: call in [event.stream_id for event in client.of(events.ResponseReceived)]
    )
    assert await client.ping()
    return call


async def answers_of_two_calls(one: RawClient, other: RawClient, address: str, limit: int, text: str) -> None:
    """Leave answers of a small call of one client and of a large call of another one."""
    async with await Channel.connect(address) as channel:
        answer = await channel.unary(API + "FetchMetadata", metadata_request(1_000), timeout=PATIENCE)
    for client in {one, other}:
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.send()
        await client.until(lambda client: client.of(events.RemoteSettingsChanged))
    # Answers to names of 130 to 3,500 characters differ in the name alone.
    small = len(answer) + 5
    large = await leave_answer(other, 1_000 + limit - 2 * small)
    call = await leave_answer(one, 1_000)
    assert one.status(call) is other.status(large) is None
    one.h2.reset_stream(call)
    call = await leave_answer(one, 1_001)
    await other.until(lambda client: client.status(large))
    found = other.status(large)
    assert found is not None
    assert found[0] == EXHAUSTED
    assert text in found[1]
    assert await one.ping()
    assert one.status(call) is None


@case("max_unsent_bytes_per_connection")
async def unsent_of_a_connection(place: Place) -> None:
    async with (
        place.gateway(max_unsent_bytes_per_connection=4_000) as gateway,
        RawClient(gateway.address) as client,
    ):
        text = "this connection leaves more than 4000 bytes of answers unsent"
        await answers_of_two_calls(client, client, gateway.address, 4_000, text)
        assert await messages_left_for_later(client, gateway.address, place.name) == 10_000


async def messages_left_for_later(client: RawClient, address: str, name: str) -> int:
    """Read a stream of 10,000 bytes, whose messages the client does not take at first; return their bytes."""
    async with liftenvelope.connect([address]) as other:
        await other.create_stream(name, name)
        await other.publish_many(name, [bytes(1_000)] * 10)
        request = api_pb2.SubscribeRequest(
            stream=name, startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST
        ).SerializeToString()
        call = client.start(API + "Subscribe")
        client.h2.send_data(call, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        client.send()
        await client.until(
            lambda client: call in [event.stream_id for event in client.of(events.ResponseReceived)]
        )
        async with other.subscribe(name, start="earliest", stop="latest") as messages:
            assert len([message async for message in messages]) == 10
    assert await client.ping()
    client.h2.increment_flow_control_window(1_000_000, call)
    client.send()
    await client.until(lambda client: client.status(call))
    frames = b"".join(event.data for event in client.of(events.DataReceived) if event.stream_id == call)
    read, at = 0, 0
    while at < len(frames):
        end = at + 5 + int.from_bytes(frames[at + 1 : at + 5], "big")
        read += len(api_pb2.Message.FromString(frames[at + 5 : end]).value)
        at = end
    return read


@case("max_unsent_bytes")
async def unsent_of_all(place: Place) -> None:
    async with (
        place.gateway(max_unsent_bytes=4_000) as gateway,
        RawClient(gateway.address) as one,
        RawClient(gateway.address) as other,
    ):
        text = "all clients leave more than 4000 bytes of answers unsent"
        await answers_of_two_calls(one, other, gateway.address, 4_000, text)


@case("max_header_list_bytes")
async def header_list(place: Place) -> None:
    limit = 2_048
    async with place.gateway(max_header_list_bytes=limit) as gateway:
        used = sum(len(name) + len(value) + 32 for name, value in RawClient.headers(CHECK))
        for more in (0, 1):
            async with RawClient(gateway.address) as client:
                client.send()
                pad = ("x-pad", "p" * (limit - used - len("x-pad") - 32 + more))
                client.h2.send_data(client.start(CHECK, pad), bytes(5), end_stream=True)
                client.send()
                await client.until(lambda client: client.of(events.StreamEnded))
                assert client.ended is bool(more)


@case("max_status_bytes")
async def status_texts(place: Place) -> None:
    async with (
        place.gateway(max_status_bytes=50) as gateway,
        await Channel.connect(gateway.address) as channel,
    ):
        before = "there is no method /proto.API/"
        _, text = await outcome(channel, "m" * (50 - len(before)), api_pb2.PublishRequest())
        assert text == before + "m" * (50 - len(before))
        _, text = await outcome(channel, "m" * (51 - len(before)), api_pb2.PublishRequest())
        assert text == before + "m" * (47 - len(before)) + "..."


#: A frame of PRIORITY, which nobody answers.
PRIORITY = b"\0\0\x05\x02\0\0\0\0\x01" + bytes(5)


@case("control_frame_burst")
async def burst_of_control_frames(place: Place) -> None:
    # The SETTINGS of both sides count as well, and time that passes allows one frame a second more.
    async with place.gateway(control_frame_burst=100, control_frames_per_second=1) as gateway:
        for count in (90, 100 + int(PATIENCE)):
            async with RawClient(gateway.address) as client:
                client.send(PRIORITY * count)
                assert await client.ping() is (count == 90)


@case("control_frames_per_second")
async def rate_of_control_frames(place: Place) -> None:
    for rate, is_enough in ((100_000, True), (1, False)):
        async with (
            place.gateway(control_frame_burst=50, control_frames_per_second=rate) as gateway,
            RawClient(gateway.address) as client,
        ):
            client.send()
            # A round takes more than the 0.4 ms in which 40 of these are allowed at the one rate.
            for _ in range(int(PATIENCE)):
                client.send(PRIORITY * 40)
                if not await client.ping():
                    break
                await asyncio.sleep(0.001)
            assert client.ended is not is_enough


@case("handshake_timeout")
async def handshakes(place: Place) -> None:
    loop = asyncio.get_running_loop()
    async with place.gateway(handshake_timeout=0.5, preface_timeout=PATIENCE, tls=True) as gateway:
        began = loop.time()
        await closed_after(gateway.address, b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
        assert loop.time() - began >= 0.4  # clocks and timers may differ a little


@case("preface_timeout")
async def prefaces(place: Place) -> None:
    loop = asyncio.get_running_loop()
    async with place.gateway(handshake_timeout=PATIENCE, preface_timeout=0.5) as gateway:
        began = loop.time()
        await closed_after(gateway.address, b"PRI * HTTP/2.0\r\n")
        assert loop.time() - began >= 0.4


@case("idle_timeout")
async def idle_connections(place: Place) -> None:
    loop = asyncio.get_running_loop()
    async with (
        place.gateway(idle_timeout=10.0) as gateway,
        await Channel.connect(gateway.address) as busy,
        busy.server_stream(WATCH, b"") as call,
    ):
        assert await anext(call)
        began = loop.time()
        async with await Channel.connect(gateway.address) as idle:
            await until(lambda: not idle.is_usable)
        assert loop.time() - began >= 9.9
        # With a call open it is not idle.
        await busy.unary(CHECK, b"", timeout=PATIENCE)


# Requests


@case("max_message_bytes")
async def envelopes(place: Place) -> None:
    limit = 100
    async with (
        place.gateway(max_message_bytes=limit) as gateway,
        liftenvelope.connect([gateway.address]) as client,
        await Channel.connect(gateway.address) as channel,
    ):
        await client.create_stream(place.name, place.name)
        room = limit - len(new_message(b"x" * 50)) + 50
        for more, expected in ((0, StatusCode.OK), (1, StatusCode.INVALID_ARGUMENT)):
            request = api_pb2.PublishRequest(stream=place.name, value=bytes(room + more))
            found, text = await outcome(channel, "Publish", request)
            assert found == expected
            assert (TOO_LARGE in text) is bool(more)
        await client.delete_stream(place.name)


@case("max_name_chars")
async def names(place: Place) -> None:
    async with place.gateway(max_name_chars=20) as gateway, await Channel.connect(gateway.address) as channel:
        for size, expected in ((20, StatusCode.NOT_FOUND), (21, StatusCode.INVALID_ARGUMENT)):
            request: Any = api_pb2.FetchPartitionMetadataRequest(stream="s" * size)
            assert await code(channel, "FetchPartitionMetadata", request) == expected
        async with channel.bidi(API + "PublishAsync") as call:
            await call.send([api_pb2.PublishRequest(stream="s" * 20).SerializeToString()])
            answer = api_pb2.PublishResponse.FromString(await anext(call))
            assert answer.asyncError.code == api_pb2.PublishAsyncError.NOT_FOUND
            await call.send([api_pb2.PublishRequest(stream="s" * 21).SerializeToString()])
            with pytest.raises(RpcError, match="stream must have at most 20 characters, got 21"):
                await anext(call)


@case("max_list_length")
async def lists(place: Place) -> None:
    async with place.gateway(max_list_length=3) as gateway, await Channel.connect(gateway.address) as channel:
        for size, expected in ((3, StatusCode.OK), (4, StatusCode.INVALID_ARGUMENT)):
            request = api_pb2.FetchMetadataRequest(streams=["s"] * size)
            assert await code(channel, "FetchMetadata", request) == expected


@case("max_partitions_per_stream")
async def partitions_of_a_stream(place: Place) -> None:
    async with (
        place.gateway(max_partitions_per_stream=2) as gateway,
        await Channel.connect(gateway.address) as channel,
    ):
        for count, expected in ((3, StatusCode.INVALID_ARGUMENT), (2, StatusCode.OK)):
            request = api_pb2.CreateStreamRequest(name=place.name, subject=place.name, partitions=count)
            assert await code(channel, "CreateStream", request) == expected
        deletion = api_pb2.DeleteStreamRequest(name=place.name)
        assert await code(channel, "DeleteStream", deletion) == StatusCode.OK


# JetStream


class Stalled:
    """A gateway that publishes to JetStream and does not hear of its acks, and what it has published.

    Attributes:
        channel: A connection to it.
        seen: The values, as they come to NATS.
    """

    def __init__(self, place: Place, proxy: FaultProxy, channel: Channel, nc: NatsClient) -> None:
        self._name = place.name
        self._proxy = proxy
        self._nc = nc
        self.channel = channel
        self.seen: list[bytes] = []

    async def begin(self) -> Any:
        """Stall the acks; return a call of PublishAsync that has published once."""
        await liftenvelope_stream(self.channel, self._name)
        # Only then is the stream's record final, which PublishAsync compares with each batch.
        await self._until_told()
        await self.channel.unary(API + "Publish", self.request(b"first"), timeout=PATIENCE)
        call = self.channel.bidi(API + "PublishAsync")
        await call.send([self.request(b"route")])
        await anext(call)

        async def note(msg: Any) -> None:
            self.seen.append(liftenvelope.unmarshal_message(msg.data).value)

        await self._nc.subscribe(self._name, cb=note)
        await handled(self._nc)
        self._proxy.stall("to_client")
        return call

    async def _until_told(self) -> None:
        """Wait until the gateway has told the activity stream of the new stream."""
        async with asyncio.timeout(PATIENCE), JetStream(self._nc) as js:
            records, subject = await js.stream("KV_lift_streams"), f"$KV.lift_streams.{self._name}"
            while b'"events"' in (await records.get_message(last_by_subject=subject, direct=False)).data:
                await asyncio.sleep(0.01)

    def request(self, value: bytes, policy: int = 0) -> bytes:
        return api_pb2.PublishRequest(stream=self._name, value=value, ackPolicy=policy).SerializeToString()  # type: ignore[arg-type]

    async def until_seen(self, *values: bytes) -> None:
        await until(lambda: set(values) <= set(self.seen))


async def liftenvelope_stream(channel: Channel, name: str) -> None:
    """Create a stream on the subject of its name."""
    request = api_pb2.CreateStreamRequest(name=name, subject=name)
    assert await code(channel, "CreateStream", request) == StatusCode.OK


@asynccontextmanager
async def stalled(place: Place, **limits: Any) -> AsyncIterator[Stalled]:
    """A gateway whose acks can be stalled for as long as a test takes."""
    nc = await connect(place.nats.url)
    options = {"ack_timeout": 2 * PATIENCE, "broker_ttl": 20 * PATIENCE}
    with FaultProxy(place.nats.address) as proxy:
        async with (
            place.gateway(url=f"nats://{proxy.address}", options=options, **limits) as gateway,
            await Channel.connect(gateway.address) as channel,
        ):
            yield Stalled(place, proxy, channel, nc)
            proxy.resume()
    await nc.close()


@case("max_pending_publishes")
async def pending_publishes_of_a_call(place: Place) -> None:
    async with stalled(place, max_pending_publishes=3) as gateway:
        call = await gateway.begin()
        # One more than the limit is read before the gateway knows that it is reached.
        for value in (b"1", b"2", b"3", b"4"):
            await call.send([gateway.request(value)])
            await gateway.until_seen(value)
        await call.send([gateway.request(b"above")])
        await gateway.channel.unary(
            API + "Publish", gateway.request(b"later", api_pb2.NONE), timeout=PATIENCE
        )
        await gateway.until_seen(b"later")
        assert b"above" not in gateway.seen
        gateway._proxy.resume()
        await gateway.until_seen(b"above")
        call.cancel()


@case("max_pending_publishes_in_all")
async def pending_publishes_of_all(place: Place) -> None:
    # A connection may have as many as it leaves free for others: three of five.
    async with stalled(place, max_pending_publishes_in_all=5) as gateway:
        call = await gateway.begin()

        async def publish(value: bytes) -> None:
            await gateway.channel.unary(API + "Publish", gateway.request(value), timeout=PATIENCE)

        single = [asyncio.create_task(publish(value)) for value in (b"1", b"2", b"3")]
        await gateway.until_seen(b"1", b"2", b"3")
        single.append(asyncio.create_task(publish(b"above")))
        await call.send([gateway.request(b"later")])
        await gateway.until_seen(b"later")
        assert b"above" not in gateway.seen
        gateway._proxy.resume()
        await asyncio.gather(*single)
        assert b"above" in gateway.seen
        call.cancel()


@case("max_pull_bytes")
async def pulls(place: Place) -> None:
    limit = 70 << 10
    asked: list[int] = []

    async def note(msg: Any) -> None:
        asked.append(json.loads(msg.data)["max_bytes"])

    nc = await connect(place.nats.url)
    await nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.lift_{place.name}_0.*", cb=note)
    await handled(nc)
    async with (
        place.gateway(max_pull_bytes=limit) as gateway,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(place.name, place.name)
        sizes = [*([1_000] * 200), 100_000]
        await client.publish_many(place.name, [bytes(size) for size in sizes])

        async def read() -> list[int]:
            async with client.subscribe(place.name, start="earliest", stop="latest") as messages:
                return [len(message.value) async for message in messages]

        assert list(await asyncio.gather(read(), read(), read())) == [sizes] * 3
    await handled(nc)
    # Only for the one message that is larger, more is asked for.
    assert max(size for size in asked if size < 100_000) <= limit
    assert max(asked) > 100_000
    await nc.close()


@case("consumer_inactivity")
async def consumers_left_over(place: Place) -> None:
    nc = await connect(place.nats.url)
    with FaultProxy(place.nats.address) as proxy:
        url = f"nats://{proxy.address}"
        async with (
            JetStream(nc) as js,
            place.gateway(url=url, consumer_inactivity=4.0) as gateway,
            await Channel.connect(gateway.address) as channel,
        ):
            await liftenvelope_stream(channel, place.name)
            request = api_pb2.SubscribeRequest(stream=place.name).SerializeToString()
            async with channel.server_stream(API + "Subscribe", request) as call:
                assert await anext(call) == b""
                stream = await js.stream(f"lift_{place.name}_0")
                readers = [info async for info in stream.consumers() if not info.config.durable_name]
                assert [info.config.inactive_threshold for info in readers] == [4.0]
                # It stays while the reader waits for messages, and goes when the gateway is lost.
                proxy.refuse()
                proxy.cut()
                async with asyncio.timeout(PATIENCE):
                    while [info async for info in stream.consumers() if not info.config.durable_name]:
                        await asyncio.sleep(0.05)
                proxy.accept()
    await nc.close()


# Ack inboxes


@case("allowed_ack_inboxes")
async def ack_inboxes(place: Place) -> None:
    nc = await connect(place.nats.url)
    allowed, other = f"{place.name}.acks.1", f"{place.name}.others.1"
    async with (
        place.gateway(allowed_ack_inboxes=(f"{place.name}.acks.",)) as gateway,
        await Channel.connect(gateway.address) as channel,
    ):
        await liftenvelope_stream(channel, place.name)
        inbox, refused = await nc.subscribe(allowed), await nc.subscribe(other)
        await handled(nc)
        for subject, expected in ((allowed, StatusCode.OK), (other, StatusCode.INVALID_ARGUMENT)):
            request = api_pb2.PublishRequest(stream=place.name, ackInbox=subject)
            assert await code(channel, "Publish", request) == expected
        assert unmarshal_ack((await inbox.next_msg(timeout=PATIENCE)).data).offset == 0
        # Envelopes on NATS are stored all the same.
        with place.log.at_level(logging.WARNING, "liftenvelope.gateway"):
            for subject in (other, other, allowed):
                await nc.publish(place.name, new_message(b"x", ack_inbox=subject, correlation_id="1"))
            assert unmarshal_ack((await inbox.next_msg(timeout=PATIENCE)).data).offset == 3
        warnings = [record for record in place.log.records if "refused the ack inbox" in record.message]
        assert len(warnings) == 1
        assert other in warnings[0].message
        assert refused.pending_msgs == 0
    await nc.close()


async def test_ack_inboxes_of_the_gateway_itself_are_allowed(own_nats: NatsServer, name: str) -> None:
    nc = await connect(own_nats.url, inbox_prefix="gateways.inbox")
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.create_stream(name, f"{name}-copy")  # its acks go by an inbox of the gateway
        ack = await client.publish(f"{name}-copy", b"x")
        assert ack is not None
        assert ack.offset == 0
    await nc.close()


@pytest.mark.parametrize(
    "limits",
    [
        {"max_partitions_per_stream": 1, "allowed_ack_inboxes": ["_INBOX."]},
        Limits(max_partitions_per_stream=1),
    ],
)
def test_limits_are_an_argument_of_run_gateway(name: str, limits: dict[str, Any] | Limits) -> None:
    with run_gateway(config={"limits": limits}) as cluster:
        cluster.create_stream(name)
        with pytest.raises(RpcError, match="partitions must be from 1 to 1, got 2"):
            cluster.create_stream(f"{name}-2", partitions=2)


# Quotas


@case("max_streams_per_client", "max_partitions_per_client")
async def streams_of_a_client(place: Place) -> None:
    limits: dict[str, Any] = {"max_streams_per_client": 2, "max_partitions_per_client": 4}

    def stream(number: int, partitions: int = 1) -> api_pb2.CreateStreamRequest:
        name = f"{place.name}-{number}"
        return api_pb2.CreateStreamRequest(name=name, subject=name, partitions=partitions)

    async with (
        place.gateway(tls=True, **limits) as gateway,
        await Channel.connect(gateway.address, tls=place.client_tls(place.name)) as channel,
        await Channel.connect(gateway.address, tls=place.client_tls(f"{place.name}-other")) as other,
    ):
        assert await code(channel, "CreateStream", stream(1, 3)) == StatusCode.OK
        assert await outcome(channel, "CreateStream", stream(2, 2)) == (
            EXHAUSTED,
            f"quota of client {place.name!r} used up: 3 partitions, and 2 more asked for "
            "(limit max_partitions_per_client is 4)",
        )
        assert await code(channel, "CreateStream", stream(2, 1)) == StatusCode.OK
        assert await code(channel, "CreateStream", stream(2, 1)) == StatusCode.ALREADY_EXISTS
        assert await code(other, "CreateStream", stream(4, 4)) == StatusCode.OK
    # A gateway that starts anew counts the same, and what is deleted counts no more.
    async with (
        place.gateway(tls=True, **limits) as gateway,
        await Channel.connect(gateway.address, tls=place.client_tls(place.name)) as channel,
    ):
        assert await outcome(channel, "CreateStream", stream(3)) == (
            EXHAUSTED,
            f"quota of client {place.name!r} used up: 2 streams (limit max_streams_per_client is 2)",
        )
        deletion = api_pb2.DeleteStreamRequest(name=f"{place.name}-1")
        assert await code(channel, "DeleteStream", deletion) == StatusCode.OK
        assert await code(channel, "CreateStream", stream(3)) == StatusCode.OK


async def test_clients_without_a_certificate_share_their_quota(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc, limits=Limits(max_streams_per_client=1), broker_ttl=60.0) as gateway:
            outcomes = []
            for number in (1, 2):
                async with await Channel.connect(gateway.address) as channel:
                    request = api_pb2.CreateStreamRequest(name=f"{name}-{number}", subject=f"{name}-{number}")
                    outcomes.append(await outcome(channel, "CreateStream", request))
            assert [found for found, _ in outcomes] == [StatusCode.OK, EXHAUSTED]
            assert outcomes[1][1].startswith("quota of clients without a certificate used up: 1 streams")
        await nc.close()


@case("max_cursors_per_client")
async def cursors_of_a_client(place: Place) -> None:
    tls, other_tls = place.client_tls(place.name), place.client_tls(f"{place.name}-other")

    def cursor(number: int) -> api_pb2.SetCursorRequest:
        return api_pb2.SetCursorRequest(stream=place.name, cursorId=f"c{number}", offset=1)

    async with place.gateway(tls=True) as gateway, await Channel.connect(gateway.address, tls=tls) as one:
        assert await code(one, "SetCursor", cursor(0)) == StatusCode.OK
    async with (
        place.gateway(tls=True, max_cursors_per_client=2) as gateway,
        await Channel.connect(gateway.address, tls=tls) as one,
        await Channel.connect(gateway.address, tls=other_tls) as other,
    ):
        # Cursors that exist, and those that are set again, do not count.
        assert await code(one, "SetCursor", cursor(0)) == StatusCode.OK
        found = await asyncio.gather(*(code(one, "SetCursor", cursor(number)) for number in (1, 1, 2, 2)))
        assert found == [StatusCode.OK] * 4
        assert await outcome(one, "SetCursor", cursor(3)) == (
            EXHAUSTED,
            f"quota of client {place.name!r} used up: 2 new cursors since this gateway started "
            "(limit max_cursors_per_client is 2)",
        )
        assert await code(other, "SetCursor", cursor(3)) == StatusCode.OK
        for number in range(4):
            assert await code(one, "SetCursor", cursor(number)) == StatusCode.OK


@case("max_subscriptions_per_client")
async def subscriptions_of_a_client(place: Place) -> None:
    lease = {"broker_ttl": 60.0}  # so that it does not end
    async with place.gateway(tls=True, options=lease, max_subscriptions_per_client=2) as gateway:
        tls, other_tls = place.client_tls(place.name), place.client_tls(f"{place.name}-other")
        async with (
            await Channel.connect(gateway.address, tls=tls) as one,
            await Channel.connect(gateway.address, tls=tls) as two,
            await Channel.connect(gateway.address, tls=other_tls) as other,
        ):
            await liftenvelope_stream(one, place.name)
            request = api_pb2.SubscribeRequest(stream=place.name).SerializeToString()

            async def open_on(channel: Channel) -> Any:
                call = channel.server_stream(API + "Subscribe", request)
                assert await anext(call) == b""
                return call

            first, _, _ = await open_on(one), await open_on(two), await open_on(other)
            with pytest.raises(RpcError) as caught:
                await open_on(two)
            assert caught.value.code == EXHAUSTED
            assert caught.value.description == (
                f"quota of client {place.name!r} used up: 2 subscriptions at this gateway "
                "(limit max_subscriptions_per_client is 2)"
            )
            first.cancel()

            async def has_room() -> bool:
                try:
                    await open_on(two)
                except RpcError:
                    return False
                return True

            async with asyncio.timeout(PATIENCE):
                while not await has_room():
                    await asyncio.sleep(0.01)


def request_of(kind: Any, size: int, **fields: Any) -> Any:
    """A request with a value, of exactly that many bytes."""
    request = kind(value=bytes(size - 50), **fields)
    request.value += bytes(size - request.ByteSize())
    assert request.ByteSize() == size
    return request


class Busy:
    """A gateway at which one client has requests pending for as long as a test takes.

    Attributes:
        name: The client and a stream.
        channel: A connection of that client.
        other: A connection of another client.
        values: Values published on the stream, in the order of their publishing.
    """

    def __init__(self, name: str, channel: Channel, other: Channel, nc: NatsClient) -> None:
        self.name = name
        self.channel = channel
        self.other = other
        self.values: list[bytes] = []
        self._nc = nc
        self._holding: list[asyncio.Task[tuple[StatusCode, str]]] = []

    async def hold(self, size: int) -> None:
        """Keep a request of that size pending: no stream records its subject."""
        heard = await self._nc.subscribe(f"{self.name}.nobody")
        await handled(self._nc)
        request = request_of(api_pb2.PublishToSubjectRequest, size, subject=f"{self.name}.nobody")
        self._holding.append(asyncio.create_task(outcome(self.channel, "PublishToSubject", request)))
        await heard.next_msg(timeout=PATIENCE)
        await heard.unsubscribe()

    async def let_go(self) -> None:
        """End the pending requests."""
        for task in self._holding:
            task.cancel()
        await asyncio.gather(*self._holding, return_exceptions=True)

    async def publish(self, channel: Channel, size: int, **fields: Any) -> tuple[StatusCode, str]:
        request = request_of(api_pb2.PublishRequest, size, stream=self.name, **fields)
        return await outcome(channel, "Publish", request)

    async def until_room(self, size: int) -> None:
        """Wait until the client may publish a request of that size."""
        async with asyncio.timeout(PATIENCE):
            while (await self.publish(self.channel, size))[0] == EXHAUSTED:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def busy(place: Place, limit: int, **limits: Any) -> AsyncIterator[Busy]:
    nc = await connect(place.nats.url)
    tls, other_tls = place.client_tls(place.name), place.client_tls(f"{place.name}-other")
    options = {"ack_timeout": 2 * PATIENCE}
    async with (
        place.gateway(tls=True, options=options, max_pending_bytes_per_client=limit, **limits) as gateway,
        await Channel.connect(gateway.address, tls=tls) as channel,
        await Channel.connect(gateway.address, tls=other_tls) as other,
    ):
        await liftenvelope_stream(channel, place.name)
        made = Busy(place.name, channel, other, nc)

        async def note(msg: Any) -> None:
            made.values.append(unmarshal_message(msg.data).value)

        await nc.subscribe(place.name, cb=note)
        await handled(nc)
        yield made
        await made.let_go()
    await nc.close()


@case("max_pending_bytes_per_client")
async def pending_bytes_of_a_client(place: Place) -> None:
    async with busy(place, limit=10_000) as gateway:
        await gateway.hold(9_000)
        assert await gateway.publish(gateway.channel, 1_000) == (StatusCode.OK, "")
        assert await gateway.publish(gateway.channel, 1_001) == (
            EXHAUSTED,
            f"quota of client {place.name!r} used up: 9000 bytes of requests pending, and 1001 more asked "
            "for (limit max_pending_bytes_per_client is 10000): wait for answers before sending more",
        )
        # Another client has the whole quota of its own.
        assert await gateway.publish(gateway.other, 10_000) == (StatusCode.OK, "")
        # Every method counts.
        cursor = api_pb2.FetchCursorRequest(stream="s" * 1_000, cursorId="c")
        assert await code(gateway.channel, "FetchCursor", cursor) == EXHAUSTED
        # Ten names of 2 characters are 40 bytes on the wire, and some 2,000 in memory.
        metadata = api_pb2.FetchMetadataRequest(streams=[f"s{number}" for number in range(10)])
        assert await code(gateway.channel, "FetchMetadata", metadata) == EXHAUSTED
        assert await code(gateway.other, "FetchMetadata", metadata) == StatusCode.OK
        await gateway.let_go()
        await gateway.until_room(1_001)


@case("max_pending_bytes")
async def pending_bytes_of_all_clients(place: Place) -> None:
    async with busy(place, limit=10_000, max_pending_bytes=12_000) as gateway:
        await gateway.hold(9_000)
        assert await gateway.publish(gateway.other, 3_000) == (StatusCode.OK, "")
        assert await gateway.publish(gateway.other, 3_001) == (
            EXHAUSTED,
            "quota of all clients used up: 9000 bytes of requests pending, and 3001 more asked for "
            "(limit max_pending_bytes is 12000): wait for answers before sending more",
        )


async def test_clients_at_two_addresses_have_quotas_of_their_own(
    own_nats: NatsServer, ca: trustme.CA, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(own_nats, name, ca, caplog)
    lease = {"broker_ttl": 60.0}  # so that the subscriptions do not end
    request = api_pb2.SubscribeRequest(stream=name).SerializeToString()
    limits: dict[str, Any] = {"max_subscriptions_per_client": 1, "max_pending_bytes_per_client": 10_000}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(place.gateway(options=lease, **limits))
        proxy = stack.enter_context(FaultProxy(gateway.address, local_address="127.0.0.2"))
        one = await stack.enter_async_context(await Channel.connect(gateway.address))
        other = await stack.enter_async_context(await Channel.connect(proxy.address))
        await liftenvelope_stream(one, name)
        calls = [channel.server_stream(API + "Subscribe", request) for channel in (one, other)]
        for call in calls:
            assert await anext(call) == b""
        with pytest.raises(RpcError, match=r"certificate at 127\.0\.0\.2 used up: 1 subscriptions"):
            await anext(other.server_stream(API + "Subscribe", request))
        assert gateway._running is not None
        held = gateway._running.core.quotas._pending.of(("", "127.0.0.1"))
        assert held.add_now(10_000)
        publish = request_of(api_pb2.PublishRequest, 1_000, stream=name)
        assert (await outcome(one, "Publish", publish))[0] == EXHAUSTED
        assert await outcome(other, "Publish", publish) == (StatusCode.OK, "")
        held.shrink(0)
        for call in calls:
            call.cancel()


async def test_publish_async_waits_at_the_quota_of_pending_bytes(
    own_nats: NatsServer, ca: trustme.CA, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with busy(Place(own_nats, name, ca, caplog), limit=10_000) as gateway:

        def message(size: int) -> bytes:
            found = request_of(api_pb2.PublishRequest, size, stream=name, expectedOffset=-1)
            return bytes(found.SerializeToString())

        async with gateway.channel.bidi(API + "PublishAsync") as call:
            await call.send([message(500)])  # the slow path, then the fast path
            assert not api_pb2.PublishResponse.FromString(await anext(call)).HasField("asyncError")
            await gateway.hold(9_000)
            await call.send([message(1_000)])
            assert api_pb2.PublishResponse.FromString(await anext(call)).ack.offset == 1
            await call.send([message(1_001), message(600)])
            # Small requests fit until the gateway has read these two, and come after them from then on.
            async with asyncio.timeout(PATIENCE):
                while (await gateway.publish(gateway.channel, 100))[0] == StatusCode.OK:
                    pass
            assert (await gateway.publish(gateway.other, 2_000))[0] == StatusCode.OK
            await until(lambda: len(gateway.values[-1]) > 1_900)
            before = len(gateway.values)
            assert all(len(value) < 100 for value in gateway.values[2:-1])
            await gateway.let_go()
            for offset in (before, before + 1):
                assert api_pb2.PublishResponse.FromString(await anext(call)).ack.offset == offset
            await until(lambda: len(gateway.values) == before + 2)
            assert 900 < len(gateway.values[before]) < 1_001
        await gateway.until_room(10_000)


async def test_request_above_the_quota_of_pending_bytes_is_served_alone(
    own_nats: NatsServer, ca: trustme.CA, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with busy(Place(own_nats, name, ca, caplog), limit=1_000) as gateway:
        assert await gateway.publish(gateway.channel, 2_000) == (StatusCode.OK, "")
        assert await gateway.publish(gateway.channel, 2_000, ackPolicy=api_pb2.NONE) == (StatusCode.OK, "")
        await gateway.until_room(1_000)
        await gateway.hold(2_000)
        assert (await gateway.publish(gateway.channel, 100))[0] == EXHAUSTED


@case("max_metric_labels")
async def names_in_metrics(place: Place) -> None:
    async with (
        place.gateway(max_metric_labels=2) as gateway,
        await Channel.connect(gateway.address) as channel,
    ):
        for number in range(3):
            await liftenvelope_stream(channel, f"{place.name}-{number}")
        await until(lambda: values(gateway, "partitions_bound")[0] >= 3)
        await gateway.refresh_metrics()
        assert len(values(gateway, "stream_raw_ack_lag_messages")) == 2
        assert len(values(gateway, "stream_raw_acks_total")) == 2
        assert values(gateway, "limit")[-1] == 2


def values(gateway: Gateway, name: str) -> list[float]:
    """Values of a metric."""
    [metric] = [one for one in gateway.metrics() if one.name == f"liftenvelope_gateway_{name}"]
    return [sample.value for sample in metric.samples]


@asynccontextmanager
async def http_of(place: Place, **limits: Any) -> AsyncIterator[str]:
    """Address of the HTTP server of a gateway with these limits."""
    nc = await connect(place.nats.url)
    server = HttpServer(GatewayMonitor(Gateway(nc, limits=Limits(**limits))))
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.close()
    await nc.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Read the end of a connection, or return False if it is open."""
    try:
        async with asyncio.timeout(0.1):
            return await reader.read() == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


@case("max_http_connections")
async def http_connections(place: Place) -> None:
    async with http_of(place, max_http_connections=2, http_timeout=1_000.0) as address:
        host, _, port = address.rpartition(":")
        first = await asyncio.open_connection(host, int(port))
        assert (await get(address, "/healthz")).status == 200  # the second one
        second = await asyncio.open_connection(host, int(port))
        assert not await is_closed(first[0])
        third = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(PATIENCE):
            while not await is_closed(first[0]):
                pass
        assert not await is_closed(second[0])
        for _, writer in (first, second, third):
            writer.close()


@case("max_http_request_bytes")
async def http_request_bytes(place: Place) -> None:
    async with http_of(place, max_http_request_bytes=2_000) as address:
        begin, end = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n\r\n"
        request = begin + b"y" * (2_000 - len(begin) - len(end)) + end
        assert b"200 OK" in await exchange(address, request)
        raw = b""
        with suppress(ConnectionResetError):
            raw = await exchange(address, request.replace(b"y", b"yy", 1))
        assert raw == b""


@case("http_timeout")
async def http_time(place: Place) -> None:
    async with http_of(place, http_timeout=1.0) as address:
        began = asyncio.get_running_loop().time()
        with suppress(ConnectionResetError):
            assert await exchange(address, b"GET /healthz HTTP/1.1\r\n") == b""
        assert asyncio.get_running_loop().time() - began >= 1.0
