"""Detects in the log of nats-server the messages that JetStream has dropped or could not store.

JetStream drops publishes without a reply subject when they arrive faster than it can store them. Only its log
reports that. There is no counter, no advisory and no gap in the sequences, which are assigned on storing. The
log is also the only source that names a stream when the disk is full, because JetStream then answers no
publish at all. The gateway always reads the log of the nats-server that it starts. It can follow the log of
another nats-server if that is a readable file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from liftenvelope._checks import about
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.jetstream.api import read_as, read_json

if TYPE_CHECKING:
    from liftenvelope.gateway._core import Core

__all__ = ["Drop", "DropWatch", "LogFile", "account_of", "follow", "read_drop", "read_fault"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Dropped messages, in nats-server 2.10 to 2.15: account, stream, reason.
_LINE: Final = re.compile(r"Dropping messages due to excessive stream ingest rate on '(.*)' > '(.*)': (.*)")
#: A message that could not be written, in nats-server 2.11 to 2.15: account, stream, reason.
_FAULT: Final = re.compile(r"JetStream failed to store a msg on stream '(.*) > (.*?)': (.*)")
#: Seconds between two checks of a file, and maximum bytes per read.
_LOOK: Final = 0.5
_CHUNK: Final = 1 << 20
#: Name of the default account, for connections without credentials.
_GLOBAL: Final = "$G"


@dataclass(frozen=True, slots=True)
class Drop:
    """A log line about messages that were not stored.

    Attributes:
        account: NATS account of the stream.
        stream: JetStream stream that misses messages.
        reason: Reason given by the server.
    """

    account: str
    stream: str
    reason: str


def read_drop(line: str) -> Drop | None:
    """Parse a log line about dropped messages; return None for any other line.

    Example:
        >>> read_drop("[WRN] Dropping messages due to excessive stream ingest rate on '$G' > 'S': full")
        Drop(account='$G', stream='S', reason='full')
    """
    found = _LINE.search(line)
    return None if found is None else Drop(found[1], found[2], found[3].strip())


def read_fault(line: str) -> Drop | None:
    """Parse a log line about a message that could not be written; return None for any other line.

    Example:
        >>> read_fault("[ERR] JetStream failed to store a msg on stream '$G > S': write a/4.blk: no space")
        Drop(account='$G', stream='S', reason='no space')
    """
    found = _FAULT.search(line)
    # The file before the reason differs from message to message.
    return None if found is None else Drop(found[1], found[2], found[3].rpartition(": ")[2].strip())


class DropWatch:
    """Logs warnings for partitions with dropped messages, and notes faults of storage.

    Args:
        core: Parts of the gateway, to find partitions.
        account: NATS account of the gateway, because other accounts may have streams of the same names.
            Default: ``$G``.

    Attributes:
        warned: Number of warnings. The server logs rarely, so it is lower than the number of messages.
    """

    def __init__(self, core: Core, *, account: str = _GLOBAL) -> None:
        self._core = core
        self._account = account
        self.warned = 0

    def feed(self, line: str) -> None:
        """Process one line of the log."""
        drop, fault = read_drop(line), read_fault(line)
        if fault is not None and fault.account == self._account:
            self._note(fault)
        found = None if drop is None else self._core.partition_of(drop.stream)
        if drop is None or found is None or drop.account != self._account:
            return
        record, partition = found
        self.warned += 1
        _log.warning(
            "%s, partition %d: JetStream has dropped messages on %r because they arrived faster than it "
            "stores them (%s); they get no acks. Increase max_buffered_msgs and max_buffered_size there",
            record.name,
            partition,
            record.subject_of(partition),
            drop.reason,
            extra={"stream": record.name, "partition": partition, "reason": drop.reason},
        )

    def _note(self, fault: Drop) -> None:
        found = self._core.partition_of(fault.stream)
        if found is not None:
            record, partition = found
            self._core.faults.note(record.name, partition, fault.reason)


class LogFile:
    """Reads lines appended to a file, also after the file is replaced or truncated by log rotation.

    Args:
        path: Path of the file. Its present content is skipped.

    Raises:
        UsageError: The file can't be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._rest = b""
        try:
            self._file: IO[bytes] = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as exc:
            text = f"nats_log must be a file that can be read, got {path!r}: {exc.strerror}"
            raise about(UsageError(text), "nats_log") from exc
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def lines(self) -> list[str]:
        """Return complete lines appended since the last call, from at most 1 MiB per call."""
        data = self._file.read(_CHUNK)
        if not data and self._is_another():
            old, self._file = self._file, open(self._path, "rb", buffering=0)  # noqa: SIM115 - as above
            old.close()
            self._rest, data = b"", self._file.read(_CHUNK)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _is_another(self) -> bool:
        try:
            there = os.stat(self._path)
        except OSError:
            return False  # the new file is not there yet
        here = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or here.st_size < self._file.tell()


async def account_of(core: Core) -> str:
    """Return the NATS account of the gateway's connection; ``$G`` if the server does not report it."""
    try:
        msg = await core.js.api.ask("$SYS.REQ.USER.INFO", repeat=True)
        what = "the answer about the user"
        return str(read_as(lambda answer: answer["data"]["account"], read_json(msg.data, what), what))
    except LiftEnvelopeError:
        return _GLOBAL


async def follow(file: LogFile, watch: DropWatch) -> None:
    """Pass lines of a log to a watch until cancelled."""
    while True:
        try:
            lines = await asyncio.to_thread(file.lines)
        except OSError as exc:
            _log.warning("could not read the log of nats-server, retrying: %s", exc)
            lines = []
        for line in lines:
            watch.feed(line)
        if not lines:
            await asyncio.sleep(_LOOK)
