"""What every part of the client builds on: its options, its cluster, and one way to make a call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from liftenvelope.client.cluster import Cluster, Deadline
from liftenvelope.client.failures import decode
from liftenvelope.client.options import Options, check_seconds
from liftenvelope.errors import ConnectionClosedError, UsageError, UsageTypeError

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from liftenvelope.client.cluster import Route

__all__ = ["ClientCore", "Closeable", "check_partition", "check_stream", "check_text"]

_M = TypeVar("_M", bound="ProtobufMessage")


class Closeable(Protocol):
    """What a client has open, and closes when it is closed."""

    async def close(self) -> None:
        """End it. Closing twice is fine."""
        ...


def check_stream(stream: str) -> str:
    """Return the name of a stream that is to be used.

    Raises:
        UsageError: It is empty.
        UsageTypeError: It is not a str.
    """
    if not isinstance(stream, str):
        raise UsageTypeError(f"stream must be str, not {type(stream).__name__}")
    if not stream:
        raise UsageError("stream must not be empty: ''")
    return check_text("stream", stream)


def check_text(name: str, text: str) -> str:
    """Return text that can be sent.

    Raises:
        UsageError: It has half a character, which UTF-8 can't say.
        UsageTypeError: It is not a str.
    """
    if not isinstance(text, str):
        raise UsageTypeError(f"{name} must be str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{name} {text!r}: it has half a character") from exc
    return text


def check_partition(partition: int) -> int:
    """Return the number of a partition.

    Raises:
        UsageError: It is negative, or larger than the API can say.
        UsageTypeError: It is not an int.
    """
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise UsageTypeError(f"partition must be an int, not {partition!r}")
    if not 0 <= partition < 2**31:
        raise UsageError(f"partition={partition!r}: expected 0 or more, below 2**31")
    return partition


class ClientCore:
    """A client without any method of its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._closed = False
        # Set by the first call: what waits in one loop can't be woken from another one.
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What ends with the client. Each adds itself when it begins, and takes itself out at its end.
        self._open: set[Closeable] = set()

    async def close(self) -> None:
        """End every subscription, publish and consumer of this client, and close its connections.

        Closing twice is fine.

        Raises:
            UsageError: Another event loop than that of the client is running.
        """
        self._check_loop()
        self._closed = True
        try:
            # Each to its end, also when another one fails: two consumers both store how far they are.
            found = await asyncio.gather(*(one.close() for one in tuple(self._open)), return_exceptions=True)
        finally:
            await self._cluster.close()
            # What a cancellation kept from being closed has no connection now, and ends at once.
            await asyncio.gather(*(one.close() for one in tuple(self._open)), return_exceptions=True)
        if (failure := next((one for one in found if one is not None), None)) is not None:
            raise failure

    def _deadline(self, timeout: float | None) -> Deadline:
        """The end of a call's time, by default that of the client's ``timeout``."""
        if self._closed:
            raise ConnectionClosedError("the client is closed: make a new one with connect()")
        self._check_loop()
        return Deadline(self._options.timeout if timeout is None else check_seconds("timeout", timeout))

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "the client was first used in another event loop, and belongs to that: make one in each "
                "loop, or one with connect_blocking(), which any thread may use"
            )

    async def _call(
        self,
        method: str,
        request: ProtobufMessage,
        answer: type[_M],
        deadline: Deadline,
        about: str,
        route: Route | None = None,
    ) -> _M | None:
        """Make a unary call; None where an earlier attempt turns out to have done it."""
        data = request.SerializeToString()
        found = await self._cluster.call(method, data, route or self._cluster.any_broker, deadline, about)
        return None if found is None else decode(answer, found, about)
