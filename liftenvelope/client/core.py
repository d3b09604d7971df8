"""Common ground of a client's parts: options, cluster, open resources, deadlines and unary calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from liftenvelope._checks import MAX_INT32, as_count, as_full_text, as_seconds
from liftenvelope._deadlines import Deadline
from liftenvelope.client._brokers.cluster import Cluster
from liftenvelope.client.failures import decode
from liftenvelope.client.options import Options
from liftenvelope.errors import ConnectionClosedError

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from liftenvelope.client._brokers.cluster import Route
    from liftenvelope.client.retries import Retry

__all__ = ["ClientContext", "Closeable", "check_partition", "check_stream"]

_M = TypeVar("_M", bound="ProtobufMessage")


class Closeable(Protocol):
    """A subscription, publish stream, consumer or checkpointer that ends with its client."""

    async def close(self) -> None:
        """Close the resource. Closing twice has no effect."""
        ...


def check_stream(stream: str) -> str:
    """Return the name of a stream if it is valid.

    Raises:
        UsageError: The name is empty, or contains a lone surrogate.
        UsageTypeError: The name is not a str.
    """
    return as_full_text("stream", stream)


def check_partition(partition: int) -> int:
    """Return the number of a partition if it is valid.

    Raises:
        UsageError: The number is negative, or 2**31 or larger: the API has an int32.
        UsageTypeError: The number is not an integer.
    """
    return as_count("partition", partition, 0, MAX_INT32)


class ClientContext:
    """State that the parts of one client share. Each part gets it by its constructor.

    Attributes:
        options: Options of the client.
        cluster: Connections to the brokers, metadata, and calls with retries.
        open_resources: Resources to close with the client. Each adds itself on open, and removes itself on
            close.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cluster = Cluster(options)
        self.open_resources: set[Closeable] = set()
        self._closed = False

    async def close(self) -> None:
        """Close all open resources, then the connections. Closing twice has no effect.

        Raises:
            UsageError: The client belongs to another event loop than the running one.
        """
        self.cluster.check_loop()
        self._closed = True
        try:
            # All are closed even if one fails: every consumer must store its offsets.
            found = await self._close_resources()
        finally:
            await self.cluster.close()
            # After a cancellation, resources still open have no connection now, so close() returns at once.
            await self._close_resources()
        if (failure := next((one for one in found if one is not None), None)) is not None:
            raise failure

    async def _close_resources(self) -> list[BaseException | None]:
        closing = (one.close() for one in tuple(self.open_resources))
        return await asyncio.gather(*closing, return_exceptions=True)

    def deadline(self, timeout: float | None) -> Deadline:
        """Return the deadline of a call.

        Args:
            timeout: Seconds; None for the client's ``timeout``.

        Raises:
            ConnectionClosedError: The client is closed.
            UsageError: The timeout is out of range, or the client belongs to another event loop.
        """
        if self._closed:
            raise ConnectionClosedError("the client is closed: make a new one with connect()")
        self.cluster.check_loop()
        return Deadline(self.options.timeout if timeout is None else as_seconds("timeout", timeout))

    async def call(
        self,
        method: str,
        request: ProtobufMessage,
        answer: type[_M],
        deadline: Deadline,
        about: str,
        route: Route | None = None,
        rule: Retry | None = None,
    ) -> _M | None:
        """Make a unary call; return None if an earlier attempt of unknown outcome turns out to be applied."""
        data, route = request.SerializeToString(), route or self.cluster.any_broker
        found = await self.cluster.call(method, data, route, deadline, about, rule=rule)
        return None if found is None else decode(answer, found, about)
