"""Quotas: how many streams, partitions and subscriptions a client may have.

A client is known by the common name of its certificate. All clients without one count as one client, since
nothing tells them apart. A stream's record keeps who created it, so every gateway counts streams alike, also
after a restart. Each gateway counts its own subscriptions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from liftenvelope._stream_names import RESERVED
from liftenvelope.gateway.authorization import client_name
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway.limits import Limits
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.gateway.registry import StreamRegistry
    from liftenvelope.rpc.server import Handler, ServerCall

__all__ = ["Quotas"]


class Quotas:
    """Counts what clients have.

    Args:
        limits: How much a client may have.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._subscriptions: Counter[str] = Counter()

    def check_stream(self, registry: StreamRegistry, record: StreamRecord) -> None:
        """Check that the client that wants to create a stream may have one more.

        Gateways that create streams of a client at the same moment do not know of each other's, so a client
        of several gateways may have one more for each of them.

        Args:
            registry: The streams that there are.
            record: The new stream.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the client has as many streams or partitions as allowed.
        """
        own = [
            other
            for other in (*registry, *registry.unfinished())
            if other.owner == record.owner and other.name not in RESERVED and other.name != record.name
        ]
        if len(own) >= (most := self._limits.max_streams_per_client):
            raise _exhausted(record.owner, f"{len(own)} streams", "max_streams_per_client", most)
        count = sum(len(other.partitions) for other in own)
        if count + len(record.partitions) > (most := self._limits.max_partitions_per_client):
            text = f"{count} partitions, and {len(record.partitions)} more asked for"
            raise _exhausted(record.owner, text, "max_partitions_per_client", most)

    def limited(self, subscribe: Handler) -> Handler:
        """Return a handler of Subscribe that refuses a client that has as many subscriptions as allowed."""

        async def serve(call: ServerCall) -> None:
            client = client_name(call.peer_certificate)
            count, most = self._subscriptions[client], self._limits.max_subscriptions_per_client
            if count >= most:
                text = f"{count} subscriptions at this gateway"
                raise _exhausted(client, text, "max_subscriptions_per_client", most)
            self._subscriptions[client] += 1
            try:
                await subscribe(call)
            finally:
                self._subscriptions[client] -= 1
                if not self._subscriptions[client]:
                    del self._subscriptions[client]

        return serve


def _exhausted(client: str, text: str, limit: str, most: int) -> RpcError:
    who = f"client {client!r}" if client else "clients without a certificate"
    return RpcError(
        StatusCode.RESOURCE_EXHAUSTED, f"quota of {who} used up: {text} (limit {limit} is {most})"
    )
