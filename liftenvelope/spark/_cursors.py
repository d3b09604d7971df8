"""Cursors that show the progress of a streaming query to other tools; the query uses its checkpoint."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.bulk.access import find_target
from liftenvelope.bulk.writing import open_client
from liftenvelope.errors import CursorsUnavailableError, LiftEnvelopeError
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    from liftenvelope.client.blocking import BlockingClient
    from liftenvelope.spark._offsets import Offsets
    from liftenvelope.spark._options import SourceOptions

__all__ = ["QueryCursors"]

#: Timeout in seconds of storing a cursor, because the query waits for it.
_TIMEOUT: Final = 2.0


class QueryCursors:
    """Stores the cursors of a query.

    The connection is opened on first use. Pickling drops it.

    Args:
        options: Options of the query; without ``cursor``, nothing is stored.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: BlockingClient | None = None
        self._set: Offsets = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return QueryCursors, (self._options,)

    def close(self) -> None:
        """Close the connection. The next call opens it again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def show(self, offsets: Offsets) -> None:
        """Set the cursors to the last offsets that were processed.

        After the first success a failure only warns: it must not end the query.

        Raises:
            OptionError: The cluster keeps no cursors.
        """
        if self._options.cursor is None:
            return
        for part, offset in offsets.items():
            if offset > 0 and self._set.get(part) != offset:
                self._show(self._options.cursor, part, offset)

    def _show(self, cursor: str, part: tuple[str, int], offset: int) -> None:
        connection = self._options.connection
        try:
            if self._client is None:
                self._client = open_client(find_target(connection.servers, connection.open()))
            first = not self._set
            self._client.set_cursor(cursor, *part, offset - 1, timeout=None if first else _TIMEOUT)
        except LiftEnvelopeError as exc:
            if isinstance(exc, CursorsUnavailableError) and not self._set:
                raise OptionError(f"commitCursor={cursor!r}: {exc}; leave commitCursor out") from exc
            text = f"commitCursor={cursor!r}: cursor of {part[0]}[{part[1]}] was not stored: {exc}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            self.close()
        else:
            self._set[part] = offset
