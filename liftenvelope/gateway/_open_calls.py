"""Counts the open calls that a gateway finishes before it stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftenvelope.rpc.server import Handler, ServerCall

__all__ = ["OpenCalls"]


class OpenCalls:
    """Counts the open calls of the methods wrapped with :meth:`counting`."""

    def __init__(self) -> None:
        self._open = 0
        self._none = asyncio.Event()
        self._none.set()

    def counting(self, handler: Handler) -> Handler:
        """Return a handler that counts its open calls."""

        async def serve(call: ServerCall) -> None:
            self._open += 1
            self._none.clear()
            try:
                await handler(call)
            finally:
                self._open -= 1
                if not self._open:
                    self._none.set()

        return serve

    async def finished(self) -> None:
        """Wait until no counted call is open."""
        await self._none.wait()
