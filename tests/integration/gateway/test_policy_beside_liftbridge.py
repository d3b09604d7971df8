"""Roles and wildcards of a policy file: the gateway decides as a real Liftbridge with casbin's keyMatch."""

from __future__ import annotations

from pathlib import Path

from liftenvelope._pb import api_pb2
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import NatsServer, run_liftbridge
from tests.integration.certificates import Certificates

from .policed_gateway import policed_gateway

MODEL = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[role_definition]
g = _, _
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act
"""
METHODS = ("FetchMetadata", "CreateStream", "FetchPartitionMetadata", "Publish", "Subscribe")
POLICY = "\n".join(
    [
        *(f"p, admins, *, {method}" for method in (*METHODS, "DeleteStream", "SetCursor", "FetchCursor")),
        "g, admin, admins",
        "p, app, orders, FetchPartitionMetadata",
        "p, readers, orders-*, FetchPartitionMetadata",
        "p, looker, *, FetchPartitionMetadata",
        "p, app, *, FetchMetadata",
        "g, nested, inner",
        "g, inner, readers",
        "g, readers, inner",
    ]
)
CLIENTS = ("admin", "app", "readers", "inner", "nested", "looker", "stranger")
STREAMS = ("orders", "orders-eu", "orders-", "order", "billing")


async def allowed(address: str, certificates: Certificates, client: str) -> set[tuple[str, str]]:
    """Return the streams whose metadata a client may ask for. None of them exists."""
    found = set()
    channel = await Channel.connect(address, tls=certificates.client(client))
    for stream in STREAMS:
        request = api_pb2.FetchPartitionMetadataRequest(stream=stream).SerializeToString()
        try:
            await channel.unary("/proto.API/FetchPartitionMetadata", request, timeout=60)
        except RpcError as exc:
            if "is not authorized" in exc.description:
                continue
        found.add((client, stream))
    await channel.close()
    return found


async def test_gateway_and_liftbridge_allow_the_same(tmp_path: Path, jetstream_server: NatsServer) -> None:
    model = tmp_path / "model.conf"
    model.write_text(MODEL)
    async with policed_gateway(tmp_path, jetstream_server.url, POLICY) as policed:
        certificates = policed.certificates
        config = {**certificates.liftbridge_config, "tls.client.authz.model": str(model)}
        with run_liftbridge(config=config, tls=certificates.client("admin"), policy=POLICY) as liftbridge:
            for client in CLIENTS:
                ours = await allowed(policed.gateways[0].address, certificates, client)
                assert ours == await allowed(liftbridge.addresses[0], certificates, client)
                expected = {
                    "admin": 5, "app": 1, "readers": 2, "inner": 2, "nested": 2, "looker": 5, "stranger": 0,
                }  # fmt: skip
                assert len(ours) == expected[client]
