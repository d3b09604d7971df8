"""Messages that JetStream has dropped or could not store, as the log of nats-server tells.

JetStream drops publishes that ask for no answer when they come faster than it stores them, and tells nobody
but its log: no counter, no advisory, and no gap in the sequences, which are given out as messages are stored.
So the log is the proof. It is also the only place that names a stream whose messages find no room on the
disk: JetStream then answers no publish at all. The log of a nats-server of the gateway's own is read anyway;
that of another one can be followed where it is a file that can be read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.gateway.core import Core

__all__ = ["Drop", "DropWatch", "LogFile", "account_of", "follow", "read_drop", "read_fault"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: nats-server 2.10 to 2.15: the account, the stream and why.
_LINE: Final = re.compile(r"Dropping messages due to excessive stream ingest rate on '(.*)' > '(.*)': (.*)")
#: nats-server 2.11 to 2.15: the same of a message that the disk does not take.
_FAULT: Final = re.compile(r"JetStream failed to store a msg on stream '(.*) > (.*?)': (.*)")
#: How often a file is looked at, in seconds, and how much of it is read at a time, in bytes.
_LOOK: Final = 0.5
_CHUNK: Final = 1 << 20
#: The account of those who need no credentials.
_GLOBAL: Final = "$G"


@dataclass(frozen=True, slots=True)
class Drop:
    """What a line says.

    Attributes:
        account: The NATS account.
        stream: The JetStream stream that did not get messages.
        reason: Why.
    """

    account: str
    stream: str
    reason: str


def read_drop(line: str) -> Drop | None:
    """Return what a line of the log says of dropped messages; None if it is about something else.

    Example:
        >>> read_drop("[WRN] Dropping messages due to excessive stream ingest rate on '$G' > 'S': full")
        Drop(account='$G', stream='S', reason='full')
    """
    found = _LINE.search(line)
    return None if found is None else Drop(found[1], found[2], found[3].strip())


def read_fault(line: str) -> Drop | None:
    """Return what a line of the log says of a message that was not stored; None for any other line.

    Example:
        >>> read_fault("[ERR] JetStream failed to store a msg on stream '$G > S': write a/4.blk: no space")
        Drop(account='$G', stream='S', reason='no space')
    """
    found = _FAULT.search(line)
    # The file before the reason differs from message to message.
    return None if found is None else Drop(found[1], found[2], found[3].rpartition(": ")[2].strip())


class DropWatch:
    """Warns of partitions whose messages were dropped or could not be stored.

    Args:
        core: Knows the partitions.
        account: The account of the gateway: streams of others may have the same names.

    Attributes:
        warned: How many warnings there were. The server writes seldom, so they are fewer than messages.
    """

    def __init__(self, core: Core, *, account: str = _GLOBAL) -> None:
        self._core = core
        self._account = account
        self.warned = 0

    def feed(self, line: str) -> None:
        """Take a line of the log."""
        drop, fault = read_drop(line), read_fault(line)
        if fault is not None and fault.account == self._account:
            self._note(fault)
        found = None if drop is None else self._core.partition_of(drop.stream)
        if drop is None or found is None or drop.account != self._account:
            return
        record, partition = found
        self.warned += 1
        _log.warning(
            "%s, partition %d: JetStream has dropped messages on %r, which came faster than it stores them "
            "(%s); they get no acks. Give its server larger max_buffered_msgs and max_buffered_size",
            record.name,
            partition,
            record.subject_of(partition),
            drop.reason,
        )

    def _note(self, fault: Drop) -> None:
        found = self._core.partition_of(fault.stream)
        if found is not None:
            record, partition = found
            self._core.faults.note(record.name, partition, fault.reason)


class LogFile:
    """Reads what is added to a file, also when it is replaced or cut short, as by rotation.

    Args:
        path: The file. What is in it already is passed over.

    Raises:
        UsageError: It can't be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._rest = b""
        try:
            self._file: IO[bytes] = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as exc:
            text = f"nats_log must be a file that can be read, got {path!r}: {exc.strerror}"
            raise UsageError(text) from exc
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Read no more."""
        self._file.close()

    def lines(self) -> list[str]:
        """The whole lines that were added since the last call, some at a time."""
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
            return False  # it is about to come
        here = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or here.st_size < self._file.tell()


async def account_of(core: Core) -> str:
    """The account of the gateway's connection, as the server names it in its log."""
    try:
        msg = await core.js.api.ask("$SYS.REQ.USER.INFO", repeat=True)
        return str(json.loads(msg.data)["data"]["account"])
    except (LiftEnvelopeError, ValueError, TypeError, KeyError):
        return _GLOBAL  # a server that does not tell


async def follow(file: LogFile, watch: DropWatch) -> None:
    """Have a log watched until this is cancelled; then the file is closed."""
    try:
        while True:
            try:
                lines = await asyncio.to_thread(file.lines)
            except OSError as exc:
                _log.warning("the log of nats-server can't be read now: %s", exc)
                lines = []
            for line in lines:
                watch.feed(line)
            if not lines:
                await asyncio.sleep(_LOOK)
    finally:
        file.close()
