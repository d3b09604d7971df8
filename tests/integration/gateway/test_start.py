"""Gateways that start on NATS servers that have only just found each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope.errors import PermissionDeniedError
from liftenvelope.gateway import Gateway
from liftenvelope.testing import run_gateway, run_nats_server
from tests.integration.conftest import connect, until
from tests.integration.jetstream_cluster import three_servers


@pytest.mark.parametrize("_round", range(2))
async def test_three_gateways_start_on_fresh_cluster(name: str, _round: int) -> None:
    """Each makes the buckets that it does not find, while their leaders are elected."""
    with three_servers() as servers:
        urls = [server.url for server in servers.values()]
        async with (
            run_gateway(3, nats_url=",".join(urls), config={"replicas": 3, "ack_timeout": 10.0}) as cluster,
            liftenvelope.connect(cluster.addresses) as client,
        ):
            await client.create_stream(name, name, replication_factor=3)
            ack = await client.publish(name, b"value", timeout=60)
            assert ack is not None
            assert ack.offset == 0


@asynccontextmanager
async def limited_user(rights: dict[str, Any]) -> AsyncIterator[tuple[Client, list[str]]]:
    """A connection with these permissions, and the violations that NATS reports to it."""
    reported: list[str] = []

    async def note(error: Exception) -> None:
        reported.append(str(error))

    users = [{"user": "gateway", "password": "s3cret", "permissions": rights}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="gateway", password="s3cret", error_cb=note)
        yield nc, reported
        await nc.close()


@pytest.mark.parametrize(
    ("rights", "denied"),
    [
        ({"publish": {"deny": ["$JS.API.>"]}}, 'publish to "$js.api.info"'),
        ({"subscribe": {"deny": ["_INBOX.>"]}}, 'subscription to "_inbox.'),
    ],
    ids=["requests", "answers"],
)
async def test_start_without_permissions_fails_before_the_timeout(rights: Any, denied: str) -> None:
    async with limited_user(rights) as (nc, _):
        for _ in range(2):  # an earlier refusal of a request counts no more, but one of the inbox lasts
            async with asyncio.timeout(60):
                with pytest.raises(PermissionDeniedError, match="NATS refuses the gateway") as caught:
                    await Gateway(nc, ack_timeout=10_000.0).start()
            assert denied in str(caught.value)
            assert "docs/operating.md" in str(caught.value)


async def test_start_is_not_retried_after_a_refused_permission() -> None:
    async with limited_user({"publish": {"deny": ["$JS.API.STREAM.INFO.*"]}}) as (nc, reported):
        with pytest.raises(
            PermissionDeniedError, match=r'publish to "\$js\.api\.stream\.info\.kv_lift_streams"'
        ):
            await Gateway(nc, ack_timeout=1.0).start()
        assert len(reported) == 1


async def test_start_fails_if_the_values_of_a_bucket_may_not_be_pulled() -> None:
    """A gateway without the records would tell clients that there are no streams."""
    denied = "$JS.API.CONSUMER.MSG.NEXT.KV_lift_streams.*"
    users = [
        {"user": "first", "password": "s3cret"},
        {"user": "gateway", "password": "s3cret", "permissions": {"publish": {"deny": [denied]}}},
    ]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        first = await connect(server.url, user="first", password="s3cret")
        async with Gateway(first) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream("orders", "orders")
        nc = await connect(server.url, user="gateway", password="s3cret")
        with pytest.raises(PermissionDeniedError, match=r"consumer\.msg\.next\.kv_lift_streams"):
            await Gateway(nc).start()
        await nc.close()
        await first.close()


async def test_refusals_of_other_users_of_the_connection_do_not_end_the_start() -> None:
    async with limited_user({"publish": {"deny": ["orders"]}}) as (nc, reported):
        await nc.publish("orders", b"x")
        await until(lambda: reported)
        async with Gateway(nc):
            assert reported == ['nats: permissions violation for publish to "orders"']
