"""Changes by the page: what they do on real servers, and who may ask for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import aiohttp
import nats
import pytest

from liftenvelope.jetstream import ConsumerConfig, JetStream, PriorityPolicy, StreamConfig
from liftenvelope.monitor.server import MonitorAccess
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.monitor.test_server import TOKEN, pages


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True) as running:
        asyncio.run(_fill(running.url))
        yield running


async def _fill(url: str) -> None:
    async with await nats.connect(url) as nc, JetStream(nc, timeout=60) as js:
        for name in ("ORDERS", "KEPT"):
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            for _ in range(3):
                await js.publish(name, b"")
        await js.create_consumer("ORDERS", ConsumerConfig(durable_name="packing"))
        await js.create_consumer(
            "ORDERS",
            ConsumerConfig(
                durable_name="pinned", priority_policy=PriorityPolicy.PINNED_CLIENT, priority_groups=("a",)
            ),
        )


async def key_of(session: aiohttp.ClientSession, below: str = "") -> str:
    async with session.get(f"{below}api/about") as answer:
        return str((await answer.json())["key"])


async def changed(session: aiohttp.ClientSession, status: int = 200, below: str = "", **change: Any) -> str:
    """Ask for a change; return its outcome."""
    headers = {"X-Liftenvelope-Key": await key_of(session, below)}
    async with session.post(f"{below}api/changes", json=change, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        found = await answer.json()
        return str(found.get("done") or found["error"])


async def test_consumer_is_paused_resumed_and_unpinned(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    place: dict[str, Any] = {"stream": "ORDERS", "consumer": "packing"}
    pinned: dict[str, Any] = {"stream": "ORDERS", "consumer": "pinned", "group": "a"}
    with caplog.at_level(logging.INFO, "liftenvelope.monitor"):
        async with (
            pages(server, changes=True) as session,
            await nats.connect(server.url) as nc,
            JetStream(nc, timeout=60) as js,
        ):
            done = await changed(session, action="pause consumer", seconds=600, **place)
            assert done == "paused consumer packing for 600 s"
            assert (await (await js.consumer("ORDERS", "packing")).info()).paused
            assert await changed(session, action="resume consumer", **place) == "resumed consumer packing"
            assert not (await (await js.consumer("ORDERS", "packing")).info()).paused
            text = await changed(session, 400, action="unpin consumer", group="none", **place)
            assert text == "group must be a priority group, but 'packing' has none, got 'none'"
            done = await changed(session, action="unpin consumer", **pinned)
            assert done == "unpinned the client of group a"
    lines = [one.getMessage() for one in caplog.records if one.name == "liftenvelope.monitor"]
    assert lines[0] == (
        "a user at 127.0.0.1 changed the servers: pause consumer ORDERS/packing, for 600 s: "
        "paused consumer packing for 600 s"
    )
    assert lines[2].startswith("a user at 127.0.0.1 could not unpin consumer ORDERS/packing, group none: ")


async def test_stream_is_purged_if_its_name_is_given_again(server: NatsServer) -> None:
    async with (
        pages(server, changes=True) as session,
        await nats.connect(server.url) as nc,
        JetStream(nc, timeout=60) as js,
    ):
        for confirm in ({}, {"confirm": "kept"}, {"confirm": "ORDERS"}):
            text = await changed(session, 400, action="purge stream", stream="KEPT", **confirm)
            assert text == "confirm must be the name of the stream to purge it"
        assert (await js.stream("KEPT")).cached_info.state.messages == 3
        assert await changed(session, action="purge stream", stream="KEPT", confirm="KEPT") == (
            "deleted 3 messages of KEPT"
        )
        assert (await js.stream("KEPT")).cached_info.state.messages == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"action": "delete stream", "stream": "ORDERS"}, "action must be one of pause consumer, resume"),
        ({"action": "pause stream", "stream": "ORDERS"}, "action must be one of pause consumer, resume"),
        (
            {"action": "pause consumer", "stream": "ORDERS", "consumer": "packing"},
            "seconds must be more than",
        ),
        ({"action": "purge stream"}, "stream must not be empty"),
        ({"action": "purge stream", "stream": 1}, "stream must be a text of at most 1000 characters"),
        ({"action": "purge stream", "stream": "x" * 2_000}, "stream must be a text of at most"),
        ({"action": "pause consumer", "stream": "A", "seconds": -1}, "seconds must be a number from 0 to"),
        ({"action": "pause consumer", "stream": "A", "seconds": True}, "seconds must be a number from 0 to"),
        ({"action": "pause consumer", "stream": "A", "more": 1}, "a change must have no other fields, got"),
        ({"action": "resume consumer", "stream": "A.*", "consumer": ">"}, "stream"),
    ],
)
async def test_malformed_change(server: NatsServer, change: dict[str, Any], text: str) -> None:
    async with pages(server, changes=True) as session:
        assert text in await changed(session, 400, **change)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 3_000])
async def test_change_that_is_no_object(server: NatsServer, body: bytes) -> None:
    async with pages(server, changes=True) as session:
        headers = {"X-Liftenvelope-Key": await key_of(session)}
        async with session.post("api/changes", data=body, headers=headers) as answer:
            assert answer.status == 400
            assert "JSON object" in (await answer.json())["error"]


async def test_body_of_a_change_is_limited(server: NatsServer) -> None:
    async with pages(server, changes=True) as session:
        headers = {"X-Liftenvelope-Key": await key_of(session)}
        async with session.post("api/changes", data=b" " * 100_000, headers=headers) as answer:
            assert answer.status == 413


CHANGE = {"action": "resume consumer", "stream": "ORDERS", "consumer": "packing"}


class TestRefused:
    async def test_without_the_option(self, server: NatsServer) -> None:
        async with pages(server) as session:
            assert await key_of(session) == ""
            assert "start the monitor with --allow-changes" in await changed(session, 403, **CHANGE)

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"X-Liftenvelope-Key": "wrong"},
            {"X-Liftenvelope-Key": ""},
            {"Origin": "https://evil.example", "X-Liftenvelope-Key": "right"},
            {"Origin": "null", "X-Liftenvelope-Key": "right"},
            {"Origin": "http://127.0.0.1:1", "X-Liftenvelope-Key": "right"},
            {"Sec-Fetch-Site": "cross-site", "X-Liftenvelope-Key": "right"},
            {"Sec-Fetch-Site": "same-site", "X-Liftenvelope-Key": "right"},
        ],
    )
    async def test_request_of_another_site(self, server: NatsServer, headers: dict[str, str]) -> None:
        async with pages(server, changes=True) as session:
            right = await key_of(session)
            sent = {name: right if value == "right" else value for name, value in headers.items()}
            async with session.post("api/changes", json=CHANGE, headers=sent) as answer:
                assert answer.status == 403

    async def test_other_host_name_and_missing_token(self, server: NatsServer) -> None:
        access = MonitorAccess(token=TOKEN)
        async with pages(server, access, changes=True) as session:
            for headers, status in (({}, 401), ({"Host": "evil.example"}, 421)):
                async with session.post("api/changes", json=CHANGE, headers=headers) as answer:
                    assert answer.status == status

    async def test_a_proxy_names_the_user_in_the_log(
        self, server: NatsServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        access = MonitorAccess(user_header="X-User", hosts=("monitor.example",))
        with caplog.at_level(logging.INFO, "liftenvelope.monitor"):
            async with pages(server, access, changes=True) as session:
                known = {"X-User": "ann", "Origin": "https://monitor.example"}
                async with session.get("api/about", headers=known) as answer:
                    key = (await answer.json())["key"]
                sent = {**known, "X-Liftenvelope-Key": key}
                async with session.post("api/changes", json=CHANGE, headers=sent) as answer:
                    assert answer.status == 200
        assert caplog.records[-1].getMessage().startswith("ann changed the servers: resume consumer")
