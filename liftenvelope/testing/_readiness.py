"""Readiness checks for servers of the Liftbridge API, polled until a started server does all its work.

A server with a policy may refuse a check to the client that makes it. The refusal shows that the server
answers, so it counts as success: a server becomes ready whatever its policy allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import TransportError
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from google.protobuf.message import Message

__all__ = ["brokers_are_known", "cursors_work", "is_serving", "leader_works"]

# grpc.health.v1: HealthCheckRequest{service: "proto.API"}, HealthCheckResponse{status: SERVING}.
_HEALTH_REQUEST: Final = b"\x0a\x09proto.API"
_HEALTH_SERVING: Final = b"\x08\x01"

# Seconds for one check. Checks are repeated until the server is ready, but a server that answers later than
# this would never become ready.
_TIMEOUT: Final = 10.0
# A broker that looks for its peers answers after 3 s or not at all; then another broker is asked.
_METADATA_TIMEOUT: Final = 5.0

_NO_STREAM: Final = "liftenvelope-testing-no-such-stream"

# Texts of Liftbridge for a call that its policy does not allow. Their status is UNKNOWN.
_DENIALS: Final = ("not authorized to call", "Failed to retrieve client ID")


def is_serving(address: str, tls: ssl.SSLContext | None = None) -> bool:
    """Return True if the server's health service reports the API as serving. No policy refuses this."""
    answer = _call(address, "/grpc.health.v1.Health/Check", _HEALTH_REQUEST, _TIMEOUT, tls)
    return answer == _HEALTH_SERVING


def brokers_are_known(
    addresses: Iterable[str], ids: Iterable[str], tls: ssl.SSLContext | None = None
) -> bool:
    """Return True if the servers together list every broker of ``ids``.

    A single server can omit others for minutes, because it keeps a list that it made too early.
    """
    missing = set(ids)
    for address in addresses:
        answer = _ask(address, "FetchMetadata", api_pb2.FetchMetadataRequest(), _METADATA_TIMEOUT, tls)
        if isinstance(answer, bytes):
            missing.difference_update(b.id for b in api_pb2.FetchMetadataResponse.FromString(answer).brokers)
        if _is_denial(answer) or not missing:
            return True
    return False


def cursors_work(addresses: Iterable[str], tls: ssl.SSLContext | None = None) -> bool:
    """Return True if one of the servers, the leader of the cursor's partition, can look up a cursor."""
    request = api_pb2.FetchCursorRequest(stream=_NO_STREAM, cursorId="ready")
    answers = (_ask(address, "FetchCursor", request, _TIMEOUT, tls) for address in addresses)
    return any(isinstance(answer, bytes) or _is_denial(answer) for answer in answers)


def leader_works(addresses: Iterable[str], tls: ssl.SSLContext | None = None) -> bool:
    """Return True if the metadata leader has loaded every stream.

    A restarted Liftbridge server serves before it has read its Raft log to the end, and answers NOT_FOUND for
    streams that it has not read yet. Only a leader that has read the whole log accepts a DeleteStream call,
    and the stream of this call does not exist.
    """
    request = api_pb2.DeleteStreamRequest(name=_NO_STREAM)
    answers = (_ask(address, "DeleteStream", request, _TIMEOUT, tls) for address in addresses)
    return any(
        isinstance(answer, RpcError) and (answer.code == StatusCode.NOT_FOUND or _is_denial(answer))
        for answer in answers
    )


def _ask(
    address: str, method: str, request: Message, timeout: float, tls: ssl.SSLContext | None
) -> bytes | RpcError | None:
    return _call(address, f"/proto.API/{method}", request.SerializeToString(), timeout, tls)


def _call(
    address: str, path: str, request: bytes, timeout: float, tls: ssl.SSLContext | None
) -> bytes | RpcError | None:
    """Return the answer or the error of a call; None if the server could not be reached."""
    try:
        with BlockingChannel(address, connect_timeout=timeout, tls=tls) as channel:
            return channel.unary(path, request, timeout=timeout)
    except RpcError as exc:
        return exc
    except TransportError:
        return None


def _is_denial(answer: bytes | RpcError | None) -> bool:
    """Return True if a server's policy refused a call. The gateway uses a code, Liftbridge a text."""
    if not isinstance(answer, RpcError):
        return False
    unknown = answer.code == StatusCode.UNKNOWN
    return answer.code == StatusCode.PERMISSION_DENIED or (
        unknown and any(text in answer.description for text in _DENIALS)
    )
