"""The gRPC health service: https://github.com/grpc/grpc/blob/master/doc/health-checking.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from liftenvelope import _wire as w
from liftenvelope._native.protobuf import Reader, read_text
from liftenvelope.errors import EnvelopeError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.rpc.server import ServerCall

__all__ = ["HealthService"]

#: Serialized HealthCheckResponse messages. SERVICE_UNKNOWN answers a Watch for an unknown service.
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
_UNKNOWN: Final = b"\x08\x03"
_SERVICES: Final = ("", "proto.API")
#: Interval at which a Watch polls the status, in seconds.
_LOOK: Final = 0.1


class HealthService:
    """Serves the gRPC health checks of the gateway.

    Args:
        is_serving: Returns True while the gateway serves requests.
        draining: Set when the gateway stops. The status is then NOT_SERVING, and every Watch ends.
    """

    def __init__(self, is_serving: Callable[[], bool], draining: asyncio.Event) -> None:
        self._is_serving = is_serving
        self._draining = draining
        self._watching = 0
        self._looking: asyncio.Task[None] | None = None

    async def check(self, raw: bytes) -> bytes:
        """Serve Check."""
        if _service(raw) not in _SERVICES:
            raise RpcError(StatusCode.NOT_FOUND, "unknown service")
        return self._status()

    async def watch(self, call: ServerCall) -> None:
        """Serve Watch: send the current status, then every change.

        Raises:
            RpcError: INTERNAL: the client sent no request or more than one. UNAVAILABLE: the gateway is
                stopping.
        """
        if _service(await call.one_request()) not in _SERVICES:
            await call.send([_UNKNOWN])
            await self._draining.wait()
            raise _stopping()
        self._watching += 1
        try:
            await self._send_changes(call)
        finally:
            self._watching -= 1
            if self._looking is not None and not self._watching:
                self._looking.cancel()
                self._looking = None

    async def _send_changes(self, call: ServerCall) -> None:
        last = b""
        while True:
            if (status := self._status()) != last:
                await call.send([status])
                last = status
            elif self._draining.is_set():
                raise _stopping()
            else:
                # One polling task serves all calls: a client may open thousands and leave them open.
                if self._looking is None or self._looking.done():
                    self._looking = asyncio.create_task(self._look(status), name="watch health")
                await asyncio.shield(self._looking)

    async def _look(self, status: bytes) -> None:
        """Wait until the status differs from ``status`` or the gateway stops."""
        while self._status() == status and not self._draining.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._draining.wait()

    def _status(self) -> bytes:
        return _SERVING if self._is_serving() and not self._draining.is_set() else _NOT_SERVING


def _stopping() -> RpcError:
    return RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping")


def _service(raw: bytes) -> str:
    name = ""
    try:
        for field in Reader(raw, 0, len(raw)).fields():
            if field.number == 1 and field.kind == w.LEN:
                name = read_text(raw, field, "service")
    except EnvelopeError as exc:
        raise RpcError(StatusCode.INTERNAL, f"the request can't be read: {exc}") from exc
    return name
