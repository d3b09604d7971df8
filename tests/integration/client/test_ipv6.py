"""The client over IPv6 to a real Liftbridge server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import liftenvelope
from liftenvelope import bulk
from liftenvelope.testing import LiftbridgeNode, run_nats_server


class IPv6Node(LiftbridgeNode):
    """A server that listens on ::1 alone, and advertises it."""

    @property
    def address(self) -> str:
        return f"[::1]:{self.port}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeNode]:
    folder: Path = tmp_path_factory.mktemp("ipv6")
    config = {
        "clustering.server.id": "node1",
        "clustering.namespace": "ipv6",
        "clustering.raft.bootstrap.seed": True,
        "cursors.stream.partitions": 1,
    }
    with run_nats_server() as nats:
        node = IPv6Node("node1", folder / "node1", lambda: nats.url, config, {})
        node.start(timeout=120)
        yield node
        node.stop()


async def test_client(node: LiftbridgeNode) -> None:
    async with liftenvelope.connect(node.address) as client:
        assert (await client.fetch_metadata()).addresses == (node.address,)
        await client.create_stream("orders", "orders")
        assert (await client.publish_many("orders", [b"a", b"b"])).acked == 2
        async with client.subscribe("orders", start=0, stop="latest") as messages:
            assert [message.value async for message in messages] == [b"a", b"b"]


def test_blocking_client_and_bulk(node: LiftbridgeNode) -> None:
    with liftenvelope.connect_blocking(node.address) as client:
        client.create_stream("bulk", "bulk")
        assert client.publish("bulk", b"a") is not None
    assert bulk.read(f"liftbridge://{node.address}", "bulk").read_all().num_rows == 1
