"""Takes samples at an interval and keeps their history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import Final, Protocol

from liftenvelope._backoff import Backoff
from liftenvelope._checks import as_seconds
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.monitor._history import History
from liftenvelope.monitor._parts import fault_of, steady_clock
from liftenvelope.monitor._snapshots import Snapshot

__all__ = ["Collector", "Sampler"]

#: A sample may take up to this share of the time, so that a slow server is asked less often.
_SHARE: Final = 1 / 3
_LONGEST: Final = 30.0
#: Failed samples in a row after which the connection is opened again.
_FAILURES: Final = 3


class Sampler(Protocol):
    """Takes snapshots, through one connection."""

    def sample(self, focus: Sequence[str] = ()) -> Awaitable[Snapshot]:
        """Take a snapshot. The streams and groups in ``focus`` are read whole."""
        ...


class Collector:
    """Takes samples at an interval until it is cancelled, through any number of lost connections.

    Args:
        connect: Opens a connection and returns a sampler on it, as an asynchronous context manager.
        interval: Seconds between two samples. A sample takes at most a third of the time: after one that took
            1 second, the next one starts 2 seconds later or more.
        history: History to add to.

    Attributes:
        history: Newest snapshot, and the series to plot. A failed sample repeats the last snapshot, with its
            fault.
        version: Number of samples so far, failed ones included.

    Example::

        collector = Collector(connect, interval=1.0)
        task = asyncio.create_task(collector.run())
        version = 0
        while True:
            version = await collector.next(version)
            for name in collector.history.latest.streams:
                print(name, collector.history.rate("stream", name))
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Sampler]],
        *,
        kind: str,
        interval: float = 2.0,
        history: History | None = None,
    ) -> None:
        self._connect = connect
        self._kind = kind
        self._interval = as_seconds("interval", interval)
        self._clock = steady_clock()
        self._focus: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self.history = history or History()
        self.version = 0

    @contextmanager
    def focus(self, *names: str) -> Iterator[None]:
        """Read these streams and groups whole in each sample while the block runs."""
        self._focus.update(names)
        try:
            yield
        finally:
            self._focus.subtract(names)
            self._focus = +self._focus

    async def next(self, version: int = 0) -> int:
        """Wait for a sample after that of a version; return the version of the newest one.

        A caller that is slow misses samples in between, and never has a queue of them.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version)
            return self.version

    async def run(self) -> None:
        """Take samples until cancelled."""
        backoff = Backoff(first=0.5, longest=10.0)
        while True:
            try:
                async with self._connect() as sampler:
                    await self._sample_until_it_fails(sampler, backoff)
            except LiftEnvelopeError as exc:
                await self.failed(exc)
            await asyncio.sleep(backoff.next())

    async def _sample_until_it_fails(self, sampler: Sampler, backoff: Backoff) -> None:
        failures = 0
        while failures < _FAILURES:
            start = self._clock()
            try:
                snapshot = await sampler.sample(tuple(self._focus))
            except LiftEnvelopeError as exc:
                failures += 1
                await self.failed(exc)
            else:
                failures = 0
                backoff.reset()
                await self._add(snapshot)
            took = self._clock() - start
            await asyncio.sleep(min(max(self._interval - took, took * (1 / _SHARE - 1)), _LONGEST))

    async def failed(self, error: LiftEnvelopeError) -> None:
        """Record a failed sample: repeat the last one, with a fault."""
        faults = (fault_of("connection", error),)
        last = self.history.latest
        if last is None:
            await self._add(Snapshot(at=self._clock(), kind=self._kind, faults=faults))
        else:
            await self._add(replace(last, at=self._clock(), faults=faults))

    async def _add(self, snapshot: Snapshot) -> None:
        self.history.add(snapshot)
        self.version += 1
        async with self._changed:
            self._changed.notify_all()
