"""Whether a client may publish to a stream, asked before the first PublishAsync request.

Liftbridge authorises clients by their certificate (``tls.client.authz``). Its PublishAsync publishes a
message before it refuses it (server/api.go, ``publishLoop``, 1.9.0 and 26.01): a refused message is stored.
Its unary Publish checks the permission first and the partition after that. A request for partition -1, which
no stream has, therefore tells whether the client may publish, and never publishes anything.

The question costs one round trip for each broker and stream. It is asked on TLS connections only: without a
certificate of the client, a server that authorises refuses every call. A stream that has refused a message is
asked for on any connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2
from liftenvelope.client.cluster import Deadline
from liftenvelope.client.failures import call_error
from liftenvelope.client.retries import READ, Fate, fate_of
from liftenvelope.errors import NoSuchPartitionError, NoSuchStreamError
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftenvelope.client.cluster import Cluster

__all__ = ["PublishPermissions", "permission_request"]


def permission_request(stream: str) -> bytes:
    """Return the Publish request that is refused for want of permission, or else of the partition."""
    return api_pb2.PublishRequest(stream=stream, partition=-1).SerializeToString()


class PublishPermissions:
    """Streams that a client may publish to, by broker: each broker has a policy of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._granted: set[tuple[str, str]] = set()
        self._has_refused: set[str] = set()
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def check(self, address: str, stream: str, deadline: Deadline) -> None:
        """Ask a broker whether this client may publish to a stream, unless that is known.

        If the broker can't be reached, another one is asked. Concurrent callers share one answer.

        Raises:
            PermissionDeniedError: It may not. Nothing was published.
            TransportError, CallTimeoutError: No broker answered in time.
        """
        is_needed = self._cluster.options.context is not None or stream in self._has_refused
        if not is_needed or (address, stream) in self._granted:
            return

        task = self._asking.get((address, stream))
        if task is None:
            task = asyncio.create_task(self._ask(address, stream))
            self._asking[address, stream] = task
            task.add_done_callback(lambda task: self._asked(address, stream, task))
        done, _ = await asyncio.wait([task], timeout=deadline.left)
        if not done:
            late = RpcError(StatusCode.DEADLINE_EXCEEDED, f"nothing came in {deadline.timeout} s")
            raise call_error("Publish", late, f"stream {stream!r}")
        if task.cancelled():
            raise CallNotProcessedError("the client is closed")
        task.result()

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
        self._granted.add((address, stream))

    def _asked(self, address: str, stream: str, task: asyncio.Task[None]) -> None:
        self._asking.pop((address, stream), None)
        if not task.cancelled():
            task.exception()  # those who wait raise it; all of them may have gone

    async def close(self) -> None:
        """Stop asking."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def refused(self, stream: str) -> None:
        """Note that a message for a stream was refused: ask again before the next one."""
        self._has_refused.add(stream)
        self._granted = {pair for pair in self._granted if pair[1] != stream}
