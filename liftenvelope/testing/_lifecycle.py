"""Base of objects that run between ``start`` and ``close``, usable with ``with`` and ``async with``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Managed", "ManagedServer"]


class Managed(ABC):
    """Starts on ``with`` or ``async with`` and closes at its end, without blocking the event loop."""

    @abstractmethod
    def start(self) -> None:
        """Start, and wait until ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop for good and clean up. Further calls do nothing."""

    def failures(self) -> list[str]:
        """Describe each server that has ended without being told to, with the end of its log."""
        return []

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
        self._explain(exc)
        self.close()

    async def __aenter__(self) -> Self:
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread can't be interrupted, and no one else would close what it starts.
            await asyncio.shield(asyncio.ensure_future(self._close_after(entering)))
            raise

    async def _close_after(self, entering: asyncio.Future[Self]) -> None:
        """Close once the start has finished, successfully or not: its caller was cancelled."""
        await asyncio.wait([entering])
        entering.exception()  # retrieved, so that the event loop does not report it
        await asyncio.to_thread(self.close)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._explain(exc)
        await asyncio.to_thread(self.close)

    def _explain(self, exc: BaseException | None) -> None:
        """Add what an ended server said to the error of the block, which is often a refused connection."""
        if exc is not None:
            for failure in self.failures():
                exc.add_note(failure)


class ManagedServer(Managed):
    """One or more server processes with a log. The pytest plugin adds that log to reports of failed tests."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """True while every process exists."""

    @abstractmethod
    def log(self) -> str:
        """Return the whole log since the first start."""
