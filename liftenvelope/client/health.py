"""Whether brokers serve: gRPC's standard health service (grpc.health.v1), which Liftbridge servers have."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from liftenvelope._native.protobuf import Reader, put_text
from liftenvelope.client.core import ClientCore
from liftenvelope.errors import EnvelopeError, TransportError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.client.cluster import Deadline

__all__ = ["HealthMixin", "HealthStatus"]

_METHOD: Final = "/grpc.health.v1.Health/Check"
# HealthCheckRequest.service and HealthCheckResponse.status.
_SERVICE: Final = 1
_STATUS: Final = 1


class HealthStatus(IntEnum):
    """What a broker's health service says of a service."""

    #: It does not say.
    UNKNOWN = 0
    #: It serves.
    SERVING = 1
    #: It does not serve now.
    NOT_SERVING = 2
    #: It knows no such service.
    SERVICE_UNKNOWN = 3
    #: The broker did not answer in time, or could not be reached.
    UNREACHABLE = 4


# What errors mean, where they mean more than UNKNOWN.
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


class HealthMixin(ClientCore):
    """The part of the client that asks brokers how they are."""

    async def check_health(
        self, *, service: str = "proto.API", timeout: float | None = None
    ) -> dict[str, HealthStatus]:
        """Ask every known broker whether it serves.

        Args:
            service: Which service: that of Liftbridge's API, or empty for the broker as a whole.
            timeout: Seconds for all of them, who are asked at the same time; default: the client's.

        Returns:
            What each said, by its ``host:port``.

        Raises:
            TransportError: The client is closed.

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
        deadline, request = self._deadline(timeout), _request(service)
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
