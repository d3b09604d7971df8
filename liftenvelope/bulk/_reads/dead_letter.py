"""Dead letters: bad messages of a read, written to another stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import as_full_text, check_calls
from liftenvelope.bulk._engine.schema import HEADERS
from liftenvelope.bulk._writes.publisher import RowTooLongError
from liftenvelope.bulk.access import Access, ServerKind, Source, Target, find_target
from liftenvelope.bulk.sources import open_stream
from liftenvelope.bulk.writing import write
from liftenvelope.errors import (
    LiftEnvelopeError,
    MessageTooLargeError,
    StreamMessageTooLargeError,
    UsageError,
)
from liftenvelope.jetstream.publish_frames import header_block

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["DeadLetter", "LetterBox"]

#: Headers that a dead letter gets.
_PREFIX: Final = "Liftenvelope-Bad-"
#: Characters of a reason that become a header.
_LONGEST_REASON: Final = 1_000
#: Connection options that choose the account of a NATS server, or its JetStream.
_ACCOUNT: Final = ("user", "password", "token", "nkeys_seed", "user_credentials", "domain", "api_prefix")


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """Stream that takes the bad messages of a read.

    Each bad message is written with its own value, key and headers, before the good rows of its batch are
    handed out. It gets the headers ``Liftenvelope-Bad-Reason``, ``-Stream``, ``-Partition`` and ``-Offset``.
    A message that is too long with these headers is written without its value, key and headers, and with
    ``Liftenvelope-Bad-Size``, the length of its value. A batch with such a message may be written twice, and
    in another order. A read that is repeated writes them again: at least once. On JetStream, their message
    ids remove such duplicates within the ``duplicate_window`` of the stream.

    Attributes:
        stream: Name of an existing stream.
        subject: For JetStream: subject of the dead letters.
        source: Servers of the stream. Default: those of the read.
        access: Connection options. Default: those of the read, unless ``source`` is given.
        on_written: Called with the number of dead letters after they were written, in threads of the read,
            also by several at a time. Repeated ones count again. Default: none.

    Raises:
        UsageError: A name is empty.
        UsageTypeError: A name is not text, or ``on_written`` is not callable.
    """

    stream: str
    subject: str | None = None
    source: Source | None = None
    access: Access | None = None
    on_written: Callable[[int], None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        as_full_text("stream", self.stream)
        if self.subject is not None:
            as_full_text("subject", self.subject)
        check_calls(on_written=self.on_written)

    def check(self, source: Source, stream: str, access: Access | None = None) -> None:
        """Check that the dead letters of a stream can be written, as far as that is known without a server.

        Args:
            source: Servers of the stream.
            stream: Name of the stream.
            access: Connection options of the stream.

        Raises:
            UsageError: The dead letters would go to the stream itself, or lack a subject.
        """
        target = find_target(*self._servers(source, access))
        if self.stream == stream and _is_same_place(target, find_target(source, access)):
            raise _own_stream(stream)
        if target.kind is ServerKind.NATS and self.subject is None:
            raise UsageError("on_bad: subject must be given for a dead letter stream of JetStream, got None")

    def _servers(self, source: Source, access: Access | None) -> tuple[Source, Access | None]:
        """Return the servers of the dead letters, and how to connect to them."""
        if self.source is None:
            return source, access if self.access is None else self.access
        return self.source, self.access


def _is_same_place(one: Target, other: Target) -> bool:
    """Return True if two targets have a server in common, and on NATS the same login to it."""
    shared = {*one.addresses}.intersection(other.addresses)
    if one.kind is not ServerKind.NATS:
        return bool(shared)
    return any(_account(one.access_to(address)) == _account(other.access_to(address)) for address in shared)


def _account(access: Access) -> list[Any]:
    return [getattr(access, name) for name in _ACCOUNT]


def _own_stream(stream: str) -> UsageError:
    # A stream that takes its own bad messages would grow with each read.
    return UsageError(f"on_bad must name another stream than the one to read, got {stream!r}")


class LetterBox:
    """Writes the bad messages of one read.

    Args:
        letter: Stream of the dead letters.
        source: Servers of the read.
        stream: Stream of the read.
        access: Connection options of the read.
        envelope: True if the messages had Liftbridge envelopes, so that dead letters get them too.

    Raises:
        UsageError: As for :meth:`DeadLetter.check`.
    """

    def __init__(
        self, letter: DeadLetter, source: Source, stream: str, access: Access | None, *, envelope: bool
    ) -> None:
        letter.check(source, stream, access)
        self._source, self._access = letter._servers(source, access)
        self._letter = letter
        self._stream = stream
        self._read_from = (source, access)
        # Servers have several names, and accounts several logins: the streams themselves tell.
        self._may_be_same = letter.stream == stream
        self._is_nats = find_target(self._source, self._access).kind is ServerKind.NATS
        self._envelope = envelope and self._is_nats

    def put(self, rows: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Write bad messages and wait for all acks.

        Raises:
            UsageError: The dead letters would go to the stream that is read.
            LiftEnvelopeError: As for :func:`write`.
        """
        if self._may_be_same:
            self._check_other()
        # No other columns: without pandas, pyarrow has no Python value for a time in nanoseconds.
        places = rows.select(["headers", "partition", "offset"]).to_pylist()
        headers = [list(self._headers(row, why)) for row, why in zip(places, reasons, strict=True)]
        table = pa.table({"value": rows["value"], "headers": pa.array(headers, HEADERS)})
        if self._envelope or not self._is_nats:
            table = table.append_column("key", rows["key"])
        if not self._is_written(table):
            self._write_by_size(table, places, reasons)
        if self._letter.on_written is not None:
            self._letter.on_written(rows.num_rows)

    def _check_other(self) -> None:
        """Tell two streams of one name by their creation times. Only before the first dead letter."""
        times = []
        for source, access in (self._read_from, (self._source, self._access)):
            with contextlib.closing(open_stream(source, self._stream, access)) as found:
                times.append(found.created())
        if times[0] == times[1] != 0:
            raise _own_stream(self._stream)
        self._may_be_same = False

    def _is_written(self, table: pa.Table) -> bool:
        """Write messages; return False if one of them is too long. Others may be stored then."""
        try:
            self._write(table)
        except LiftEnvelopeError as exc:
            if not _is_too_long(exc):
                raise
            return False
        return True

    def _write(self, table: pa.Table) -> None:
        options: dict[str, Any] = {"envelope": self._envelope} if self._is_nats else {}
        if self._is_nats:
            options["subject"] = self._letter.subject
        write(self._source, self._letter.stream, table, access=self._access, **options)

    def _write_by_size(
        self, table: pa.Table, places: Sequence[Mapping[str, Any]], reasons: Sequence[str]
    ) -> None:
        """Write bad messages of which some are too long, those without their content.

        A search by halves, the shortest messages first, finds the first one that is too long. All after it
        are too long as well. So 1,000 messages take some 10 writes, whatever they are.
        """
        sizes = _sizes_of(table)
        order = sorted(range(table.num_rows), key=sizes.__getitem__)
        written, refused = 0, len(order)  # the messages between have one that is too long
        while refused - written > 1:
            middle = (written + refused) // 2
            if self._is_written(table.take(pa.array(order[written:middle], pa.int64()))):
                written = middle
            else:
                refused = middle
        self._write_short(table, order[written:], places, reasons)

    def _write_short(
        self,
        table: pa.Table,
        rows: Sequence[int],
        places: Sequence[Mapping[str, Any]],
        reasons: Sequence[str],
    ) -> None:
        """Write messages without their content."""
        headers = []
        for row in rows:
            size = b"%d" % table["value"][row].as_buffer().size
            own = self._headers({**places[row], "headers": ()}, reasons[row])
            headers.append([*own, (f"{_PREFIX}Size", size)])
        self._write(pa.table({"value": [b""] * len(rows), "headers": pa.array(headers, HEADERS)}))

    def _headers(self, row: Mapping[str, Any], reason: str) -> Iterator[tuple[str, bytes]]:
        for name, value in row["headers"]:
            if not self._is_nats or self._envelope or _is_plain(name, value):
                yield name, value
        place = f"{self._stream}-{row['partition']}-{row['offset']}"
        if self._is_nats and not self._envelope:
            yield "Nats-Msg-Id", place.encode()
        text = " ".join(reason.split())[:_LONGEST_REASON]
        yield f"{_PREFIX}Reason", text.encode("ascii", "backslashreplace")
        yield f"{_PREFIX}Stream", self._stream.encode()
        yield f"{_PREFIX}Partition", b"%d" % row["partition"]
        yield f"{_PREFIX}Offset", b"%d" % row["offset"]


def _is_too_long(error: LiftEnvelopeError) -> bool:
    """Return True if a server, or the stream, takes no message of that length."""
    refused = (RowTooLongError, StreamMessageTooLargeError, MessageTooLargeError)
    return isinstance(error, RowTooLongError) or isinstance(error.__cause__, refused)


def _sizes_of(letters: pa.Table) -> list[int]:
    """Return the lengths of messages, but for what is as long in all with as many headers."""
    rows = letters.to_pylist()
    return [
        len(row["value"])
        + len(row.get("key") or b"")
        + sum(len(name.encode()) + len(value or b"") + 4 for name, value in row["headers"])
        for row in rows
    ]


def _is_plain(name: str, value: bytes | None) -> bool:
    """Return True if NATS carries a header and no server acts on it."""
    if name.lower().startswith("nats-") or name.startswith(_PREFIX):
        return False
    try:
        header_block([(name, (value or b"").decode())])
    except (UnicodeDecodeError, UsageError):
        return False
    return True
