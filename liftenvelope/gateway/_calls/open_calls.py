"""Counts the calls of a gateway by method: open ones, which it finishes before it stops, and ended ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.rpc.server import Handler, ServerCall

__all__ = ["MethodCalls", "OpenCalls"]


class MethodCalls:
    """Calls of one method.

    Attributes:
        open: Number of open calls.
        ended: Number of ended calls, by the name of their gRPC status.
    """

    def __init__(self) -> None:
        self.open = 0
        self.ended: dict[str, int] = {}

    def end(self, status: StatusCode) -> None:
        """Count the end of a call."""
        self.open -= 1
        self.ended[status.name] = self.ended.get(status.name, 0) + 1


class OpenCalls:
    """Counts the calls of the methods wrapped with :meth:`counting`.

    Attributes:
        methods: Calls by method, without the service.
    """

    def __init__(self) -> None:
        self.methods: dict[str, MethodCalls] = {}
        self._open = 0
        self._none = asyncio.Event()
        self._none.set()

    def counting(self, handlers: Mapping[str, Handler], endless: Collection[str]) -> dict[str, Handler]:
        """Return handlers that count their calls.

        Args:
            handlers: Handlers by path.
            endless: Paths of the methods whose calls end only when the client ends them. :meth:`finished`
                does not wait for these calls.
        """
        return {
            path: self._counting(path.rpartition("/")[2], handler, is_endless=path in endless)
            for path, handler in handlers.items()
        }

    def _counting(self, method: str, handler: Handler, *, is_endless: bool) -> Handler:
        calls = self.methods[method] = MethodCalls()

        async def serve(call: ServerCall) -> None:
            status = StatusCode.UNKNOWN
            self._began(calls, is_endless)
            try:
                await handler(call)
                status = StatusCode.OK
            except RpcError as exc:
                status = StatusCode(exc.code)
                raise
            except asyncio.CancelledError:
                status = StatusCode.CANCELLED
                raise
            finally:
                calls.end(status)
                self._ended(is_endless)

        return serve

    def _began(self, calls: MethodCalls, is_endless: bool) -> None:
        calls.open += 1
        if not is_endless:
            self._open += 1
            self._none.clear()

    def _ended(self, is_endless: bool) -> None:
        if not is_endless:
            self._open -= 1
            if not self._open:
                self._none.set()

    async def finished(self) -> None:
        """Wait until no call is open, apart from endless ones."""
        await self._none.wait()
