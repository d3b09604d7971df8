"""Things that run between ``start`` and ``close``, as context managers of both kinds."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Managed"]


class Managed(ABC):
    """Started by ``with`` or ``async with``, closed at its end. The async form blocks no event loop."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it is ready."""

    @abstractmethod
    def close(self) -> None:
        """End it for good, and remove what it leaves behind. Closing twice is fine."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread can't be stopped half-way, and nobody else would close what it starts.
            await asyncio.shield(asyncio.ensure_future(self._close_after(entering)))
            raise

    async def _close_after(self, entering: asyncio.Future[Self]) -> None:
        """Close it as soon as it has started. Whether it did does not matter: its user has gone."""
        await asyncio.wait([entering])
        entering.exception()  # looked at, so that the event loop does not report it
        await asyncio.to_thread(self.close)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
