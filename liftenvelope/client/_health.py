"""Health checks of brokers through gRPC's standard health service (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import as_text
from liftenvelope._native.protobuf import Reader, put_text
from liftenvelope.errors import EnvelopeError, TransportError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._deadlines import Deadline
    from liftenvelope.client.core import ClientContext

__all__ = ["HealthChecks", "HealthStatus"]

_METHOD: Final = "/grpc.health.v1.Health/Check"
# Field numbers of HealthCheckRequest.service and HealthCheckResponse.status.
_SERVICE: Final = 1
_STATUS: Final = 1


class HealthStatus(IntEnum):
    """Health of a service on a broker."""

    #: The broker gave no usable status.
    UNKNOWN = 0
    #: The service accepts calls.
    SERVING = 1
    #: The service does not accept calls now.
    NOT_SERVING = 2
    #: The broker has no such service.
    SERVICE_UNKNOWN = 3
    #: The broker did not answer in time, or could not be reached.
    UNREACHABLE = 4


# Health by gRPC status code; other codes mean UNKNOWN.
_BY_CODE: Final[dict[int, HealthStatus]] = {
    StatusCode.NOT_FOUND: HealthStatus.SERVICE_UNKNOWN,
    StatusCode.DEADLINE_EXCEEDED: HealthStatus.UNREACHABLE,
    StatusCode.UNAVAILABLE: HealthStatus.UNREACHABLE,
}


def _request(service: str) -> bytes:
    out = bytearray()
    put_text(out, _SERVICE, service)
    return bytes(out)


def _status(answer: bytes) -> HealthStatus:
    status = 0
    try:
        for field in Reader(answer, 0, len(answer)).fields():
            status = field.value if field.number == _STATUS else status
    except EnvelopeError:
        return HealthStatus.UNKNOWN
    return HealthStatus(status) if status <= HealthStatus.SERVICE_UNKNOWN else HealthStatus.UNKNOWN


class HealthChecks:
    """Part of a client: asks every broker for its health."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._cluster = context.cluster

    async def check_health(
        self, *, service: str = "proto.API", timeout: float | None = None
    ) -> dict[str, HealthStatus]:
        """Check the health of every known broker, all at the same time.

        Args:
            service: Name of the gRPC service. Default: Liftbridge's API. Empty for the broker as a whole.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            Health of each broker, by its ``host:port``.

        Raises:
            TransportError: The client is closed.
            UsageError: An argument is invalid.

        Example:
            >>> import asyncio, liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         return list((await client.check_health()).values())
            >>> with run_liftbridge() as cluster:
            ...     asyncio.run(main(cluster.addresses))
            [<HealthStatus.SERVING: 1>]
        """
        deadline, request = self._context.deadline(timeout), _request(as_text("service", service))
        addresses = self._cluster.addresses()
        found = await asyncio.gather(*(self._health_of(one, request, deadline) for one in addresses))
        return dict(zip(addresses, found, strict=True))

    async def _health_of(self, address: str, request: bytes, deadline: Deadline) -> HealthStatus:
        try:
            channel = await self._cluster.connections.channel(address, deadline.left)
            return _status(await channel.unary(_METHOD, request, timeout=deadline.left))
        except TransportError:
            return HealthStatus.UNREACHABLE
        except RpcError as exc:
            return _BY_CODE.get(exc.code, HealthStatus.UNKNOWN)
