"""Lines of standard input or a file, read without blocking the event loop, of a limited length."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["ByteSource", "LineSplitter", "open_bytes", "read_chunk"]

_CHUNK: Final = 64 * 1024


class ByteSource(Protocol):
    """Source of bytes, such as a file or a pipe."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes; none at the end."""


class LineSplitter:
    r"""Divides chunks of bytes into lines. The line end ``\n`` is not part of a line.

    Args:
        max_bytes: Maximum length of a line.

    Attributes:
        number: Number of the line that was returned last, from 1.

    Example:
        >>> splitter = LineSplitter(max_bytes=10)
        >>> [*splitter.feed(b"one\ntw"), *splitter.feed(b"o\nthree"), *splitter.finish()]
        [b'one', b'two', b'three']
    """

    def __init__(self, max_bytes: int) -> None:
        self.number = 0
        self._max_bytes = max_bytes
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Return the lines that end in a chunk.

        Raises:
            LiftEnvelopeError: A line is too long. All lines before it have been returned.
        """
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            yield self._take()
        self._add(rest)

    def finish(self) -> Iterator[bytes]:
        """Return the last line if it has no line end."""
        if self._partial:
            yield self._take()

    def _add(self, part: bytes) -> None:
        if len(part) > self._max_bytes - len(self._partial):
            raise LiftEnvelopeError(
                f"line {self.number + 1:,} must be at most {self._max_bytes:,} bytes, got more: "
                "set --max-line-bytes if the server accepts longer messages"
            )
        self._partial += part

    def _take(self) -> bytes:
        line = bytes(self._partial)
        self._partial.clear()
        self.number += 1
        return line


def _opened(path: str) -> io.FileIO:
    try:
        return open(path, "rb", buffering=0)
    except (OSError, ValueError) as exc:  # a ValueError is for a path with a null byte
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise UsageError(f"--file must be a file that can be read, got {path!r}: {reason}") from exc


@contextmanager
def open_bytes(path: str | None) -> Iterator[ByteSource]:
    """Open a file, and close it in the end.

    The file has no buffer, so that lines of a pipe come as soon as they are written.

    Args:
        path: Path of the file; None or ``-`` for standard input.

    Raises:
        UsageError: The file can't be opened, or standard input is closed.
    """
    if path is not None and path != "-":
        with _opened(path) as file:
            yield file
        return
    if sys.stdin is None:
        raise UsageError("--file must be given with --lines, because standard input is closed")
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a program replaced sys.stdin
        yield sys.stdin.buffer
        return
    # Not sys.stdin.buffer: a thread that waits in it holds a lock that the end of the interpreter needs.
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        yield file


def read_chunk(source: ByteSource) -> asyncio.Future[bytes]:
    """Read the next bytes in a thread, and return their future. The end of the source is ``b""``.

    The thread is a daemon, because a read of a terminal or a pipe can't be cancelled. The executor of the
    event loop would wait for such a read after Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()

    def settle(chunk: bytes, error: OSError | None) -> None:
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(chunk)
        else:
            future.set_exception(error)

    def read() -> None:
        chunk, error = b"", None
        try:
            chunk = source.read(_CHUNK) or b""
        except OSError as exc:
            error = exc
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the bytes any more
            loop.call_soon_threadsafe(settle, chunk, error)

    threading.Thread(target=read, name="liftenvelope-lines", daemon=True).start()
    return future
