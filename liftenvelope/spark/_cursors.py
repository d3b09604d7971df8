"""Positions that show the progress of a streaming query to other tools; the query uses its checkpoint."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftenvelope.bulk.access import find_target
from liftenvelope.bulk.writing import open_client
from liftenvelope.errors import CursorsUnavailableError, LiftEnvelopeError
from liftenvelope.spark._commit_consumers import CommitConsumers
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    from liftenvelope.client.blocking import BlockingClient
    from liftenvelope.spark._offsets import Offsets
    from liftenvelope.spark._options import SourceOptions

__all__ = ["QueryCursors"]

#: Timeout in seconds of storing a cursor, because the query waits for it.
_TIMEOUT: Final = 2.0


class _PositionStore(Protocol):
    """Place for the position of a query in each partition."""

    def store(self, part: tuple[str, int], offset: int, timeout: float | None) -> None:
        """Store the offset that the query reads next."""
        ...

    def close(self) -> None:
        """Close the connection. The next call opens it again."""
        ...


class _Cursors:
    """Cursors of Liftbridge, with the last offset that was processed."""

    def __init__(self, options: SourceOptions, cursor: str) -> None:
        self._options = options
        self._cursor = cursor
        self._client: BlockingClient | None = None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def store(self, part: tuple[str, int], offset: int, timeout: float | None) -> None:
        connection = self._options.connection
        if self._client is None:
            self._client = open_client(find_target(connection.servers, connection.open()))
        self._client.set_cursor(self._cursor, *part, offset - 1, timeout=timeout)


class QueryCursors:
    """Stores the positions of a query: cursors of Liftbridge, consumers of JetStream.

    The connections are opened on first use. Pickling drops them.

    Args:
        options: Options of the query; without ``cursor``, nothing is stored.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._set: Offsets = {}
        # Once all positions of a batch were stored, no failure ends the query.
        self._has_begun = False
        # By partition whose position was not stored: number of that failure.
        self._failed: dict[tuple[str, int], int] = {}
        self._failures = 0
        self._label, self._store = _store_of(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return QueryCursors, (self._options,)

    def close(self) -> None:
        """Close the connections. The next call opens them again."""
        if self._store is not None:
            self._store.close()

    def show(self, offsets: Offsets) -> None:
        """Store the positions after the last offsets that were processed.

        A failure warns, since it must not end the query. It ends the call: the query waits for it, and it may
        take as long for each partition. The next call stores the positions in the other partitions first.

        Raises:
            OptionError: The servers, or a stream, can't keep the positions, and the query has just begun.
        """
        if self._store is None:
            return
        moved = [part for part, offset in offsets.items() if offset > 0 and self._set.get(part) != offset]
        for part in sorted(moved, key=lambda one: self._failed.get(one, 0)):
            if not self._show(self._store, part, offsets[part]):
                self._failures += 1
                self._failed[part] = self._failures
                return
            self._failed.pop(part, None)
        self._has_begun = self._has_begun or bool(moved)

    def _show(self, store: _PositionStore, part: tuple[str, int], offset: int) -> bool:
        """Store a position; return False, and warn, if that fails."""
        try:
            store.store(part, offset, None if not self._set else _TIMEOUT)
        except LiftEnvelopeError as exc:
            if isinstance(exc, CursorsUnavailableError) and not self._set:
                raise OptionError(f"{self._label}: {exc}; leave commitCursor out") from exc
            if isinstance(exc, OptionError) and not self._has_begun:
                raise
            text = f"{self._label}: position in {part[0]}[{part[1]}] was not stored: {exc}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            store.close()
            return False
        self._set[part] = offset
        return True


def _store_of(options: SourceOptions) -> tuple[str, _PositionStore | None]:
    """Return the option that asks for positions, for errors, and the place to store them; None for none."""
    name = options.cursor
    if name is None:
        return "", None
    if options.connection.format == "jetstream":
        return f"commitConsumer={name!r}", CommitConsumers(options, name)
    return f"commitCursor={name!r}", _Cursors(options, name)
