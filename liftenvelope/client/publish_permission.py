"""Check of publish permissions, made before the first PublishAsync request to a stream.

Liftbridge authorises clients by their certificate (``tls.client.authz``). Its PublishAsync publishes a
message before it refuses the message (server/api.go, ``publishLoop``, 1.9.0 and 26.01), so a refused message
is stored. Its unary Publish checks the permission first and the partition after that. No stream has a
partition -1: a Publish request for it shows whether the client may publish, and never publishes anything.

The check costs one round trip per broker and stream. Checks are made on TLS connections only: without a
client certificate, a server that authorises refuses every call. After a stream has refused a message, the
check is made on any connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._brokers.shared_requests import SharedRequests
from liftenvelope.client._recent import note
from liftenvelope.client.retries import READ, Fate, fate_of
from liftenvelope.errors import NoSuchPartitionError, NoSuchStreamError
from liftenvelope.rpc.status import RpcError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftenvelope.client._brokers.cluster import Cluster

__all__ = ["PublishPermissions", "permission_request"]


def permission_request(stream: str) -> bytes:
    """Return a Publish request that fails without permission with a denial, else with a missing partition."""
    return api_pb2.PublishRequest(stream=stream, partition=-1).SerializeToString()


class PublishPermissions:
    """Streams that the client may publish to, by broker: each broker has its own policy."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Used as sets, oldest first: (address, stream) of each grant, and streams that refused a message.
        self._granted: dict[tuple[str, str], None] = {}
        self._has_refused: dict[str, None] = {}
        self._asking: SharedRequests[tuple[str, str], None] = SharedRequests("Publish")

    async def check(self, address: str, stream: str, deadline: Deadline) -> None:
        """Ask a broker whether this client may publish to a stream, unless the answer is known.

        If the broker can't be reached, another one is asked. Concurrent callers share one request.

        Raises:
            PermissionDeniedError: The client may not publish. Nothing was published.
            TransportError, CallTimeoutError: No broker answered in time.
        """
        is_needed = self._cluster.options.context is not None or stream in self._has_refused
        if not is_needed or (address, stream) in self._granted:
            return
        await self._asking.result(
            (address, stream), lambda: self._ask(address, stream), deadline, f"stream {stream!r}"
        )

    async def _ask(self, address: str, stream: str) -> None:
        async def route(failed: Sequence[str], deadline: Deadline) -> str:
            return await self._cluster.any_broker(failed, deadline) if failed else address

        request, about = permission_request(stream), f"stream {stream!r}"
        deadline = Deadline(self._cluster.options.timeout)
        try:
            await self._cluster.call("Publish", request, route, deadline, about, rule=READ)
        except (NoSuchPartitionError, NoSuchStreamError):
            pass  # the expected answer of a server that lets the client publish
        except RpcError as exc:
            if fate_of(exc) is not Fate.REFUSED:
                raise
        note(self._granted, (address, stream), None)

    async def close(self) -> None:
        """Cancel running checks."""
        await self._asking.close()

    def refused(self, stream: str) -> None:
        """Record that a message for a stream was refused, so that the next message needs a new check."""
        note(self._has_refused, stream, None)
        self._granted = {pair: None for pair in self._granted if pair[1] != stream}
