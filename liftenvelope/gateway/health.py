"""The gRPC health service: https://github.com/grpc/grpc/blob/master/doc/health-checking.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftenvelope import _wire as w
from liftenvelope._protobuf_py import Reader, read_text
from liftenvelope.errors import EnvelopeError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.rpc.server import ServerCall

__all__ = ["HealthService"]

#: HealthCheckResponse: SERVING, and for Watch of a service that there is not SERVICE_UNKNOWN.
_SERVING: Final = b"\x08\x01"
_UNKNOWN: Final = b"\x08\x03"
_SERVICES: Final = ("", "proto.API")


class HealthService:
    """Says that the gateway serves. It does from the moment that it listens."""

    async def check(self, raw: bytes) -> bytes:
        """Serve Check."""
        if _service(raw) not in _SERVICES:
            raise RpcError(StatusCode.NOT_FOUND, "unknown service")
        return _SERVING

    async def watch(self, call: ServerCall) -> None:
        """Serve Watch: say it once, and again never, for it does not change while the gateway lives."""
        requests = [request async for request in call]
        known = len(requests) == 1 and _service(requests[0]) in _SERVICES
        await call.send([_SERVING if known else _UNKNOWN])
        await asyncio.Event().wait()


def _service(raw: bytes) -> str:
    name = ""
    try:
        for field in Reader(raw, 0, len(raw)).fields():
            if field.number == 1 and field.kind == w.LEN:
                name = read_text(raw, field, "service")
    except EnvelopeError as exc:
        raise RpcError(StatusCode.INTERNAL, f"the request can't be read: {exc}") from exc
    return name
