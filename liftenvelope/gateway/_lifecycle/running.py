"""A gateway that runs: drains its calls and closes its parts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.nats.link import Link
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway._calls.open_calls import OpenCalls
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._leader.leading import Leading
    from liftenvelope.gateway._monitoring.drops import DropWatch
    from liftenvelope.gateway._monitoring.group_lag import GroupLag
    from liftenvelope.gateway._monitoring.lag import LagMeter, StreamLag
    from liftenvelope.gateway._readers.groups import GroupFace
    from liftenvelope.gateway._readers.reads import OpenReads
    from liftenvelope.rpc.server import Server

__all__ = ["Running"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds that calls have to end after they were told to.
_ENDING: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One run of a gateway.

    All parts are started by :func:`~liftenvelope.gateway._lifecycle.starting.start_gateway`.

    Attributes:
        address: Address on which the gateway listens, as ``host:port``.
        core: The gateway's parts.
        leading: Leader work of this gateway.
        server: gRPC server.
        reads: The open subscriptions.
        calls: The open calls that draining waits for, and counts of all calls.
        groups: Serves the consumer groups.
        drops: Reads the log of the NATS server.
        ack_lag: Measures the lag of the acks of raw NATS publishers, by stream.
        group_lag: Measures the lag of the groups that this gateway coordinates.
        parts: Closes the parts, in the reverse order of their start.
    """

    address: str
    core: Core
    leading: Leading
    server: Server
    reads: OpenReads
    calls: OpenCalls
    groups: GroupFace
    drops: DropWatch
    ack_lag: LagMeter[dict[str, StreamLag]]
    group_lag: LagMeter[list[GroupLag]]
    parts: AsyncExitStack

    async def drain(self, seconds: float) -> None:
        """Finish the open calls, send the acks they are waiting for, and hand over to other gateways.

        Args:
            seconds: Time limit for the open calls and their acks.
        """
        core = self.core
        core.draining.set()
        self.server.refuse_calls()
        try:
            async with asyncio.timeout(seconds):
                await self.calls.finished()
                if core.nc.is_connected:
                    await self.leading.catch_up()
                    # The acks must be sent before an embedded nats-server stops.
                    await Link(core.nc).barrier(seconds)
        except TimeoutError:
            _log.warning("not all publishes had their acks within %s s of draining", seconds)
        except LiftEnvelopeError as exc:
            _log.warning("not all publishes had their acks when the gateway stopped: %s", exc)
        await core.brokers.leave()
        self.reads.end_all(RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"))
        await self.server.close(grace=_ENDING)

    async def close(self) -> None:
        """Close all parts."""
        await self.parts.aclose()
