r"""Parser for the messages of a NATS connection: a part of the twin of ``_fastframes``.

A NATS server sends lines, some of them followed by a message. Sizes are decimal, and the size of an ``HMSG``
includes that of its headers::

    MSG <subject> <sid> [<reply> ]<size>\r\n<payload>\r\n
    HMSG <subject> <sid> [<reply> ]<size of headers> <size>\r\n<headers><payload>\r\n
    PING\r\n   PONG\r\n   +OK\r\n   -ERR '<text>'\r\n   INFO <json>\r\n

:class:`NatsWalker` takes the messages of chosen subscriptions out of these bytes, and leaves everything else,
byte for byte, to the client that owns the connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from liftenvelope._checks import as_bytes
from liftenvelope._native.blocks import MessageBlock
from liftenvelope._native.delivered import Delivered
from liftenvelope.errors import UsageTypeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["NatsWalker"]

# The only forms that a server writes. All other lines are left to the client.
# nats-server 2.15.1 writes two blanks for the reply that it leaves out of its answer to CONSUMER.RESET.
MSG_LINE: Final = re.compile(rb"MSG +([^\s]+) +(\d{1,18}) +(?:([^\s]+) +)?()(\d{1,18})")
HMSG_LINE: Final = re.compile(rb"HMSG +([^\s]+) +(\d{1,18}) +(?:([^\s]+) +)?(\d{1,18}) +(\d{1,18})")
OTHER_LINE: Final = re.compile(rb"PING|PONG|\+OK|-ERR '.+'|INFO [^\r]+")
# A longer line counts as malformed.
_LONGEST_LINE: Final = 65_536
_CRLF: Final = 2


class _Opening(NamedTuple):
    """Form in which the messages of a subscription are delivered."""

    payloads: bool = False
    message_class: type[Delivered] | None = None
    acks: Any = None
    statuses: bytes = b""
    blocks: bool = False

    def leaves(self, head: _Head) -> bool:
        """Return True if the message is left to nats-py, because its reply subject is invalid."""
        return self.message_class is not None and not _is_text(head.reply)

    def is_status(self, head: _Head) -> bool:
        """Return True for a status of the server, which has no reply subject."""
        if self.message_class is None or head.reply:
            return False
        return head.subject.encode().startswith(self.statuses)

    def message(self, head: _Head, headers: bytes | None, payload: bytes) -> Any:
        """Return the message in the requested form."""
        if self.payloads:
            return payload
        if self.message_class is None:
            return head.subject, head.reply, headers, payload
        message = self.message_class(head.subject, "", payload, headers, self.acks)
        message._reply = head.reply
        message._size = len(head.subject.encode()) + len(head.reply) + head.size
        return message


@dataclass
class _MessageRun:
    """Messages of one subscription in one walk: all up to the next status, or a status alone."""

    sid: int
    in_block: bool
    size: int = 0
    messages: list[Any] = field(default_factory=list)

    def content(self) -> list[Any] | MessageBlock[Any]:
        """Return the messages as a list or a block."""
        return MessageBlock(self.messages) if self.in_block else self.messages


class _Head(NamedTuple):
    """Fields of an MSG or HMSG line."""

    subject: str
    sid: int
    reply: bytes
    header_size: int
    size: int


@final
class NatsWalker:
    """Takes the messages of chosen subscriptions out of the bytes of a NATS connection.

    Invariants: all bytes that are not part of a taken message are returned unchanged and in order. Input must
    have exactly the form that servers write. From the first malformed line on, everything is left, so that
    the client that owns the connection sees the fault as it would without the walker.

    Args:
        max_message: Largest message to take, headers included, in bytes. From the first larger one on,
            everything is left.
    """

    __slots__ = ("_buffer", "_max_message", "_opened", "_pass_all", "_passing")

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._opened: dict[int, _Opening] = {}
        self._buffer = bytearray()
        self._passing = 0
        self._pass_all = False

    def open(self, sid: int, payloads: bool = False) -> None:
        """Take the messages of this subscription from now on.

        Args:
            sid: Subscription id.
            payloads: True to return payloads instead of tuples.
        """
        self._opened[sid] = _Opening(payloads)

    def open_delivered(
        self,
        sid: int,
        message_class: type[Delivered],
        acks: Any,
        statuses: bytes,
        blocks: bool = False,
    ) -> None:
        """Take the messages of this subscription from now on, as objects of a class or in blocks.

        Messages whose reply subject is not UTF-8 are left.

        Args:
            sid: Subscription id.
            message_class: A subclass of :class:`Delivered`. Its ``__init__`` may be bypassed.
            acks: Object that sends the acks of the messages.
            statuses: Subject prefix of statuses. A message with this prefix and without a reply is returned
                in a list of its own, in its place between the other messages.
            blocks: True to return a :class:`MessageBlock` in place of each list of other messages.
        """
        if not issubclass(message_class, Delivered):
            raise UsageTypeError(f"{message_class!r} is no subclass of Delivered")
        self._opened[sid] = _Opening(False, message_class, acks, statuses, blocks)

    def close(self, sid: int) -> None:
        """Leave the messages of this subscription from now on, including a partly received one."""
        self._opened.pop(sid, None)

    def skip(self, size: int) -> None:
        """Leave the next ``size`` bytes: the rest of a message that the client has begun to read.

        Call it before the first :meth:`feed`, or before the first after :meth:`reset`.
        """
        self._passing = size

    def pass_all(self) -> None:
        """Leave everything, until :meth:`reset`."""
        self._pass_all = True

    def reset(self) -> None:
        """Restart at the first byte of a new connection. The subscriptions stay open."""
        self._buffer.clear()
        self._passing = 0
        self._pass_all = False

    def feed(self, data: Buffer) -> None:
        """Add received bytes. Then call :meth:`walk` until it leaves nothing."""
        self._buffer += as_bytes("data", data)

    def walk_over(self, data: Buffer) -> tuple[list[tuple[int, int, list[Any] | MessageBlock[Any]]], bytes]:
        """Call :meth:`feed`, and :meth:`walk` once. The bytes may change afterwards."""
        self.feed(data)
        return self.walk()

    def walk(self) -> tuple[list[tuple[int, int, list[Any] | MessageBlock[Any]]], bytes]:
        """Take messages, then leave bytes, up to the next message to take or the end of the input.

        Returns:
            Runs of messages, ordered by their first message. A run has the id of a subscription, the total
            length of the payloads, and the messages: payloads, objects, or tuples of subject, reply (``b""``
            if none), headers (None if none) and payload. A subscription has one run, unless there are
            statuses. Then the bytes left, which came after these messages. They end behind the line of a
            message that nats-py would misread if it had the message with its line.
        """
        runs: list[_MessageRun] = []
        open_runs: dict[int, _MessageRun] = {}
        start, at = 0, self._passed(0)
        while at < len(self._buffer):
            head, body = self._read_line(at)
            if head is None:
                if body == at:  # the line is incomplete
                    break
                at = self._passed(body)
            elif (opening := self._opened.get(head.sid)) is None or opening.leaves(head):
                self._passing = head.size + _CRLF
                if _is_misread(head, bytes(self._buffer[body : body + 1])):
                    at = body
                    break
                at = self._passed(body)
            elif start < at or head.size + _CRLF > len(self._buffer) - body:
                break
            else:
                self._take(runs, open_runs, head, body)
                start = at = body + head.size + _CRLF
        left = bytes(self._buffer[start:at])
        del self._buffer[:at]
        return [(run.sid, run.size, run.content()) for run in runs], left

    def _passed(self, at: int) -> int:
        """Return the end of the bytes to leave, starting at ``at``."""
        if self._pass_all:
            return len(self._buffer)
        step = min(self._passing, len(self._buffer) - at)
        self._passing -= step
        return at + step

    def _read_line(self, at: int) -> tuple[_Head | None, int]:
        """Parse a line. Return its fields if a message follows, and its end: ``at`` if it is incomplete."""
        end = self._buffer.find(b"\n", at)
        if end < 0:
            self._pass_all = len(self._buffer) - at > _LONGEST_LINE
            return None, at + self._pass_all  # an end beyond `at` makes walk() leave everything
        line = bytes(self._buffer[at:end])
        head = _head(line[:-1])
        sound = line.endswith(b"\r") and (head is not None or OTHER_LINE.fullmatch(line[:-1]))
        if not sound or (head is not None and head.size > self._max_message):
            self._pass_all, head = True, None
        return head, end + 1

    def _take(
        self, runs: list[_MessageRun], open_runs: dict[int, _MessageRun], head: _Head, body: int
    ) -> None:
        begin = body + head.header_size
        payload = bytes(self._buffer[begin : body + head.size])
        headers = bytes(self._buffer[body:begin]) if head.header_size else None
        opening = self._opened[head.sid]
        is_alone = opening.is_status(head)
        run = None if is_alone else open_runs.get(head.sid)
        if run is None:
            run = open_runs[head.sid] = _MessageRun(head.sid, opening.blocks and not is_alone)
            runs.append(run)
        run.messages.append(opening.message(head, headers, payload))
        run.size += len(payload)
        if is_alone:
            del open_runs[head.sid]


def _is_misread(head: _Head, first: bytes) -> bool:
    """Return True if nats-py might take the start of a message's headers for a word of its line.

    In nats-py's pattern for ``HMSG``, a line end may stand between the two sizes (2.16). Servers forward
    headers of any form. So the headers ``5<CR LF>`` of a message without a reply subject become its size, and
    nats-py reads the rest of the message as commands of the server.
    """
    return head.header_size > 0 and not head.reply and first not in (b"", b"N")


def _is_text(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True


def _head(line: bytes) -> _Head | None:
    """Parse an MSG or HMSG line without its end; return None for other or invalid lines."""
    found = MSG_LINE.fullmatch(line) or HMSG_LINE.fullmatch(line)
    if found is None:
        return None
    subject, sid, reply, header_size, size = found.groups()
    try:
        head = _Head(subject.decode(), int(sid), reply or b"", int(header_size or 0), int(size))
    except UnicodeDecodeError:
        return None
    return head if head.header_size <= head.size else None
