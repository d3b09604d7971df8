"""What a Liftbridge server answers while it starts: asked until it answers as it should."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import TransportError
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import RpcError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

__all__ = ["cursors_work", "is_serving", "known_brokers"]

# grpc.health.v1: HealthCheckRequest{service: "proto.API"}, HealthCheckResponse{status: SERVING}.
_HEALTH_REQUEST: Final = b"\x0a\x09proto.API"
_HEALTH_SERVING: Final = b"\x08\x01"

_HEALTH_TIMEOUT: Final = 1.0
# A broker that looks for its peers answers after 3 s, or not at all.
_METADATA_TIMEOUT: Final = 4.0


def is_serving(address: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether the server's health service says that it serves the API."""
    return (
        _answer(address, "/grpc.health.v1.Health/Check", _HEALTH_REQUEST, _HEALTH_TIMEOUT, tls)
        == _HEALTH_SERVING
    )


def known_brokers(addresses: Iterable[str], tls: ssl.SSLContext | None = None) -> set[str]:
    """Return the ids of the brokers that at least one of the servers knows.

    One alone can leave out others for minutes, since it keeps a list that it made too early.
    """
    ids: set[str] = set()
    for address in addresses:
        answer = _answer(address, "/proto.API/FetchMetadata", b"", _METADATA_TIMEOUT, tls)
        ids.update(broker.id for broker in api_pb2.FetchMetadataResponse.FromString(answer).brokers)
    return ids


def cursors_work(addresses: Iterable[str], tls: ssl.SSLContext | None = None) -> bool:
    """Whether one of the servers, the leader of the cursor's partition, can look up a cursor."""
    request = api_pb2.FetchCursorRequest(stream="ready", cursorId="ready").SerializeToString()
    method = "/proto.API/FetchCursor"
    return any(_answer(address, method, request, _HEALTH_TIMEOUT, tls) for address in addresses)


def _answer(address: str, method: str, request: bytes, timeout: float, tls: ssl.SSLContext | None) -> bytes:
    """Return the answer, or nothing when there is none."""
    try:
        with BlockingChannel(address, connect_timeout=timeout, tls=tls) as channel:
            return channel.unary(method, request, timeout=timeout)
    except (RpcError, TransportError):
        return b""
