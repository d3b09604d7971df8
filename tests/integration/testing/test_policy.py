"""Test servers with an authorisation policy: they become ready whatever it allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import LiftbridgeAdmin, run_gateway, run_liftbridge
from tests.integration.certificates import Certificates

ADMIN = """\
p, admin, *, FetchMetadata
p, admin, orders, CreateStream
p, admin, orders, FetchPartitionMetadata
p, admin, orders, Subscribe
p, app, orders, Publish
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("name", ["admin", "unknown", None])
def test_liftbridge_becomes_ready_with_a_policy_that_allows_nothing(
    certificates: Certificates, name: str | None
) -> None:
    with run_liftbridge(
        config=certificates.liftbridge_config, tls=certificates.client(name), policy=""
    ) as cluster:
        assert cluster.is_running
        with pytest.raises(RpcError, match=r"not authorized to call|Failed to retrieve client ID") as info:
            cluster.create_stream("orders")
        assert info.value.code == StatusCode.UNKNOWN
        cluster.stop()
        cluster.start()


def test_liftbridge_enforces_the_policy(certificates: Certificates) -> None:
    config, admin = certificates.liftbridge_config, certificates.client("admin")
    with run_liftbridge(config=config, tls=admin, policy=ADMIN) as cluster:
        cluster.create_stream("orders")
        request = api_pb2.PublishRequest(stream="orders", value=b"tea").SerializeToString()
        with BlockingChannel(cluster.addresses[0], tls=certificates.client("app")) as channel:
            answer = channel.unary("/proto.API/Publish", request, timeout=60.0)
        assert api_pb2.PublishResponse.FromString(answer).ack.offset == 0
        assert cluster.read("orders", count=1)[0].value == b"tea"
        with pytest.raises(RpcError, match="not authorized to call DeleteStream"):
            cluster.delete_stream("orders")
        app = LiftbridgeAdmin(cluster.addresses, tls=certificates.client("app"))
        with pytest.raises(RpcError, match="not authorized to call FetchPartitionMetadata"):
            app.partition_metadata("orders")


def test_three_liftbridge_servers_become_ready_with_a_policy_that_allows_nothing(
    certificates: Certificates,
) -> None:
    config, tls = certificates.liftbridge_config, certificates.client("admin")
    with run_liftbridge(nodes=3, config=config, tls=tls, policy="") as cluster:
        assert cluster.is_running


def test_gateways_become_ready_with_a_policy_that_allows_nothing(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.csv").write_text("")
    monkeypatch.chdir(tmp_path)
    config = {**certificates.gateway_config, "policy_file": Path("policy.csv")}
    with run_gateway(2, config=config, tls=certificates.client("app")) as cluster:
        with pytest.raises(RpcError) as info:
            cluster.create_stream("orders")
        assert info.value.code == StatusCode.PERMISSION_DENIED
