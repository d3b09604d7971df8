"""Publishes each line of standard input or a file as a message, with many of them in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import click

from liftenvelope.cli._connecting.servers import CommandServers
from liftenvelope.cli._output.terminal import echo_json, shown
from liftenvelope.cli._publishing.lines import ByteSource, LineSplitter, read_chunk
from liftenvelope.cli._publishing.outgoing import Outgoing, facts_of
from liftenvelope.cli._publishing.senders import Send, open_sender
from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["LineOptions", "publish_lines"]

_KINDS: Final = ("acked", "refused", "unknown")


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """Options of ``publish --lines``.

    Attributes:
        key_delimiter: Text between the key and the value of a line; None for lines without keys.
        max_line_bytes: Maximum length of a line.
        in_flight: Lines that may wait for their acks at a time.
        as_json: True to print a record for each line.
    """

    key_delimiter: bytes | None
    max_line_bytes: int
    in_flight: int
    as_json: bool

    def divide(self, line: bytes, key: bytes | None) -> tuple[bytes | None, bytes]:
        """Return the key and the value of a line. A line without the delimiter has the key of the command."""
        if self.key_delimiter is None:
            return key, line
        before, found, after = line.partition(self.key_delimiter)
        return (before, after) if found else (key, line)


async def publish_lines(
    servers: CommandServers, message: Outgoing, source: ByteSource, options: LineOptions
) -> None:
    """Publish the lines of a source in their order.

    The first failure ends the reading, because the lines behind it would be stored without it. Lines that are
    in flight at that time, or at Ctrl-C, get their outcome first. An attempt is never repeated: a repeated
    line would be stored after the lines that follow it.

    Raises:
        LiftEnvelopeError: A line was not acked; the message counts the lines by outcome.
    """
    if options.key_delimiter is not None and servers.is_jetstream and not message.envelope:
        raise UsageError("--key-delimiter must be left out for JetStream, unless with --envelope")
    async with open_sender(servers, message, in_flight=options.in_flight) as send:
        await _LineRun(send, message.key, options).run(source)


class _LineRun:
    """Lines in flight and the outcomes so far. Outcomes are reported in the order of the lines."""

    def __init__(self, send: Send, key: bytes | None, options: LineOptions) -> None:
        self._send = send
        self._key = key
        self._options = options
        self._pending: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._counts = dict.fromkeys(_KINDS, 0)
        self._next = 1  # first line that was not handed to the connection
        self._failed = False

    async def run(self, source: ByteSource) -> None:
        reason = ""
        try:
            await self._publish(source)
        except asyncio.CancelledError:  # Ctrl-C
            if self._pending:
                lines = _lines(len(self._pending))
                click.echo(f"Note: waiting for the acks of {lines}; Ctrl-C again ends the wait", err=True)
            await self._finish()
            click.echo(f"Note: {self._summary()}", err=True)
            raise
        except (LiftEnvelopeError, OSError) as exc:  # a line is too long, or the source can't be read
            reason, self._failed = f"{exc}. ", True
        await self._finish()
        if self._failed:
            raise LiftEnvelopeError(reason + self._summary())
        if not self._options.as_json:
            click.echo(f"stored {_lines(self._counts['acked'])}")

    async def _publish(self, source: ByteSource) -> None:
        splitter = LineSplitter(self._options.max_line_bytes)
        while chunk := await self._chunk(source):
            for line in splitter.feed(chunk):
                await self._publish_line(line)
                if self._failed:
                    return
        if not self._failed:
            for line in splitter.finish():
                await self._publish_line(line)

    async def _chunk(self, source: ByteSource) -> bytes:
        """Return the next bytes; none at the end, and none after a failure, for which no read is waited."""
        reading = read_chunk(source)
        try:
            while not reading.done() and not self._failed:
                first = [self._pending[0][1]] if self._pending else []
                await asyncio.wait([reading, *first], return_when=asyncio.FIRST_COMPLETED)
                self._settle()
            return b"" if self._failed else reading.result()
        finally:
            reading.cancel()

    async def _publish_line(self, line: bytes) -> None:
        while len(self._pending) >= self._options.in_flight:
            await asyncio.wait([self._pending[0][1]])
            self._settle()
        if self._failed:
            return
        key, value = self._options.divide(line, self._key)
        try:
            future = await self._send(value, key)
        except LiftEnvelopeError as exc:
            self._failed = True  # now: the lines before this one may take their time
            future = asyncio.get_running_loop().create_future()
            future.set_exception(exc)
        self._pending.append((self._next, future))
        self._next += 1
        self._settle()

    async def _finish(self) -> None:
        """Wait for the lines in flight. Each has a timeout, so the wait ends."""
        while self._pending:
            await asyncio.wait([self._pending[0][1]])
            self._settle()

    def _settle(self) -> None:
        """Report the outcomes that are known, up to the first line without one."""
        while self._pending and self._pending[0][1].done():
            number, future = self._pending.popleft()
            error = future.exception()
            if error is None:
                # A record is made for --json alone: there may be millions of lines.
                self._report(number, "acked", **(facts_of(future.result()) if self._options.as_json else {}))
                continue
            if not isinstance(error, LiftEnvelopeError):
                raise error
            self._failed = True
            self._report(number, "unknown" if error.sent else "refused", error=str(error))

    def _report(self, number: int, outcome: str, **facts: Any) -> None:
        self._counts[outcome] += 1
        if self._options.as_json:
            echo_json({"line": number, "outcome": outcome, **facts})
        elif outcome != "acked":
            text = "was refused" if outcome == "refused" else "has an unknown outcome"
            click.echo(shown(f"line {number:,} {text}: {facts['error']}"), err=True)

    def _summary(self) -> str:
        counts = ", ".join(f"{self._counts[kind]:,} {kind}" for kind in _KINDS)
        return f"Lines: {counts}. Line {self._next:,} and those after it were not published"


def _lines(count: int) -> str:
    return f"{count:,} {'line' if count == 1 else 'lines'}"
