"""Locks for changes of streams: a slow change holds up only those that may concern the same messages.

Streams on overlapping subjects take part in each other's changes: one records the subject, and the others
copy from it. So two changes exclude each other if they are of the same stream, or if their subjects may
overlap. Subjects are compared by their tokens up to the first wildcard, at most four. They may overlap if one
is the beginning of the other, which also covers the subjects of partitions (``orders.1`` with ``orders``).

The invariant: a change waits for every earlier one that it excludes, and for no later one. So there is no
deadlock, and no change waits for ever. A change whose task is cancelled while it waits keeps its place until
the earlier ones are done, because later ones wait for it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

__all__ = ["ChangeLocks"]

#: Tokens of a subject up to its first wildcard. That of a stream's name begins with an empty token.
_Path: TypeAlias = tuple[str, ...]
#: Tokens of a subject that are compared.
_TOKENS: Final = 4
#: Changes in progress at once. Each creates up to 16 partitions at once, and nats-server queues 10,000
#: requests.
_AT_ONCE: Final = 32


class ChangeLocks:
    """Admits changes of streams that do not concern each other at the same time.

    Args:
        at_once: Changes in progress at once; further ones wait. Default 32.
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        # The end of the latest change of each path, and the ends of those with longer paths below it.
        self._latest: dict[_Path, asyncio.Future[None]] = {}
        self._below: dict[_Path, set[asyncio.Future[None]]] = {}
        self._places = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def held(self, name: str, *subjects: str) -> AsyncIterator[None]:
        """Exclude other changes of a stream, and of those whose subjects may overlap.

        Args:
            name: Name of the stream.
            subjects: Subjects that the change concerns.
        """
        paths = {("", name), *map(_path, subjects)}
        earlier, end = self._earlier(paths), asyncio.get_running_loop().create_future()
        self._enter(paths, end)
        ready = asyncio.gather(*earlier)
        try:
            await asyncio.shield(ready)
            async with self._places:
                yield
        finally:
            if ready.done():
                self._leave(paths, end)
            else:
                ready.add_done_callback(lambda _: self._leave(paths, end))

    def _earlier(self, paths: Iterable[_Path]) -> set[asyncio.Future[None]]:
        """Return the ends of the changes that exclude a new one on these paths."""
        found = {end for path in paths for end in self._below.get(path, ())}
        known = [self._latest.get(path[:count]) for path in paths for count in range(len(path) + 1)]
        return found | {end for end in known if end is not None}

    def _enter(self, paths: Iterable[_Path], end: asyncio.Future[None]) -> None:
        for path in paths:
            self._latest[path] = end
            for count in range(len(path)):
                self._below.setdefault(path[:count], set()).add(end)

    def _leave(self, paths: Iterable[_Path], end: asyncio.Future[None]) -> None:
        for path in paths:
            if self._latest.get(path) is end:
                del self._latest[path]
            for above in (path[:count] for count in range(len(path))):
                below = self._below.get(above, set())
                below.discard(end)
                if not below:
                    self._below.pop(above, None)
        end.set_result(None)


def _path(subject: str) -> _Path:
    tokens = subject.split(".")[:_TOKENS]
    wild = [number for number, token in enumerate(tokens) if token in ("*", ">")]
    return tuple(tokens[: wild[0]] if wild else tokens)
