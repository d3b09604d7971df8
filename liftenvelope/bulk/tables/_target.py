"""Interface of table formats, and the one place that turns errors of their libraries into ours."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from liftenvelope._backoff import Patience
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk.errors import TableCommitError, TableError
from liftenvelope.errors import LiftEnvelopeError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk.tables._state import TableState

__all__ = ["ConflictError", "OvertakenError", "TableTarget", "commit", "patiently"]

_T = TypeVar("_T")
#: Errors of the operating system that no further attempt mends: no room, no right to write, no such place.
_FINAL: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
    }
)
#: Errors of a library that say that the call, the table or its configuration is wrong.
_WRONG: Final = (ValueError, TypeError, NotImplementedError, AttributeError, KeyError)
#: Colours of a terminal.
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class ConflictError(Exception):
    """Another commit came first. This one is not in the table, and will not be."""


class OvertakenError(Exception):
    """The table has moved on: rows that are read and not committed must be read again."""


class TableTarget(Protocol):
    """A table of one format. Only one thread uses it.

    Attributes:
        title: Format and name of the table, for errors.
        version: Version of the table that the last call saw; None before any.
    """

    title: str
    version: int | None

    def find(self, partitions: list[int]) -> TableState:
        """Load the table anew, and return the state of the stream in it. Changes nothing.

        Args:
            partitions: Numbers of the partitions of the stream that are read.
        """
        ...

    def prepare(self, schema: pa.Schema, record: str) -> TableState:
        """Create the table, or add the columns that it lacks, onto the version of the last :meth:`find`.

        Args:
            schema: Arrow schema of the rows.
            record: Record of the options that the stream is written with.

        Returns:
            The state of the stream in the table.

        Raises:
            ConflictError: Another writer created or changed the table at the same time.
            TableSchemaError: A column of the stream does not fit.
        """
        ...

    def reload(self) -> TableState:
        """Return the state of the stream as of now."""
        ...

    def stage(self, batches: list[pa.RecordBatch]) -> None:
        """Take rows of the next commit."""
        ...

    def try_commit(self, state: TableState) -> TableState:
        """Commit the staged rows, and the state after them, onto the version of the last prepare or reload.

        Returns:
            The state of the version that is loaded now.

        Raises:
            ConflictError: Another commit with offsets of this stream, or of any kind, came first.
        """
        ...

    def has_landed(self) -> bool:
        """Return True if the version of the last reload has one of the attempts to commit the staged rows."""
        ...

    def can_commit(self) -> bool:
        """Return True if the staged rows can be committed onto the version of the last reload."""
        ...

    def discard(self) -> None:
        """Forget the staged rows."""
        ...

    def maintain(self, *, compact: bool, expire_hours: int | None) -> None:
        """Merge small files and remove old versions, by the calls of the format's library.

        Raises:
            UsageError: The library has no such call.
            ConflictError: Another commit came first.
        """
        ...

    def maintained_at(self) -> int | None:
        """Return when :meth:`maintain` was last done, by any writer, in s since 1970; None for never."""
        ...


@contextmanager
def mapped(title: str) -> Iterator[None]:
    """Raise a library's error as TableError or, where another attempt may help, as TableCommitError.

    Errors of this package and conflicts pass. An OSError such as a full disk gets the name of the table and a
    remedy: the errors of Arrow and of the libraries have neither.
    """
    try:
        yield
    except (LiftEnvelopeError, ConflictError, OvertakenError):
        raise
    except Exception as exc:
        if isinstance(exc, OSError) and exc.errno in _FINAL:
            reason = without_secrets(exc.strerror or os.strerror(exc.errno))
            text = f"{title}: {reason}; what is committed stays, so call again when it can be written"
            raise OSError(exc.errno, text, exc.filename) from exc
        text = f"{title}: {type(exc).__name__}: {_plain(without_secrets(exc))}"
        raise (TableError if isinstance(exc, _WRONG) else TableCommitError)(text) from exc


def _plain(text: str) -> str:
    """Return a text as one line without colours, which delta-rs has in its errors."""
    return " ".join(_COLOUR.sub("", text).split())


def patiently(work: Callable[[], _T], wait: float) -> _T:
    """Call a function again until it neither meets a conflict nor an error that may pass.

    Raises:
        TableCommitError: There was no other outcome for ``wait`` seconds.
    """
    patience = Patience(wait)
    while True:
        try:
            return work()
        except (ConflictError, TableCommitError) as exc:
            pause = patience.failed(time.monotonic())
            if pause is None:
                raise exc if isinstance(exc, TableCommitError) else TableCommitError(str(exc)) from exc
            time.sleep(pause)


def commit(target: TableTarget, before: TableState, after: TableState, wait: float) -> TableState:
    """Commit the staged rows once, whatever other writers do and whatever attempts fail.

    An attempt is made only onto a version of the table that still has the state ``before``. Formats refuse it
    if the table has changed since, so that no second commit of the same rows can succeed. An error leaves the
    outcome open: the table is loaded again, and shows it. A commit that arrives even later meets the same
    guard, as it was made onto an older version.

    Returns:
        The state of the loaded version. It is not ``after`` if another writer has gone on since the commit,
        or has committed other partitions before it. The caller must read on from there, since no guard
        refuses a commit onto this version.

    Raises:
        OvertakenError: Another writer has committed offsets of this stream, or changed the partitioning.
        TableCommitError: No attempt succeeded for ``wait`` seconds.
    """
    is_first = True

    def attempt() -> TableState:
        nonlocal is_first
        with mapped(target.title):
            if not is_first:
                found = target.reload()
                if target.has_landed():
                    target.discard()
                    return found
                if found != before or not target.can_commit():
                    raise OvertakenError
            is_first = False
            return target.try_commit(after)

    return patiently(attempt, wait)
