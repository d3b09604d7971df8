"""Messages of a NATS connection that are not rows, in parts. No I/O."""

from __future__ import annotations

import re
from typing import Final

from liftenvelope.jetstream.statuses import Status, status_number

__all__ = ["Frame", "claimed_size"]

#: First line of a message, which ends with the size in bytes.
_MESSAGE_LINE: Final = re.compile(rb"H?MSG [^\r\n]* (\d{1,18})\r\n")


def claimed_size(data: bytes | memoryview, start: int, end: int) -> int:
    """Return the size that a message at ``start`` claims in its first line; 0 if no message starts there."""
    found = _MESSAGE_LINE.match(data, start, end)
    return int(found[1]) if found is not None else 0


class Frame:
    """A message that is not a row, such as the answer to a request.

    Attributes:
        subject: Subject of the message.
        sid: Number of the subscription that it came by.
        reply: Subject to answer on; empty for none.
        headers: Headers with their first line; empty for none.
        payload: The rest of the message.
    """

    def __init__(self, line: bytes, headers: bytes, payload: bytes) -> None:
        words = line.split()
        self.subject = words[1].decode("utf-8", "replace")
        self.sid = int(words[2])
        sizes = 2 if words[0] == b"HMSG" else 1
        self.reply = words[3].decode("utf-8", "replace") if len(words) > 3 + sizes else ""
        self.headers = headers
        self.payload = payload

    @property
    def number(self) -> int | None:
        """Last token of the subject as a number; None if it is not a number."""
        return status_number(self.subject.rpartition(".")[2])

    @property
    def status(self) -> Status | None:
        """Status code and description from the headers; None for an ordinary message."""
        first, *lines = self.headers.decode("utf-8", "replace").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or status_number(words[1]) is None:
            return None
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        fields["Status"], fields["Description"] = words[1], words[2] if len(words) > 2 else ""
        return Status.from_headers(fields)
