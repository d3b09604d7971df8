"""What a server says to a pull beside messages: a number, a text, and sometimes what the pull had left.

Servers give one number to things that differ, so the text has to tell them apart. That is done here alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

__all__ = ["Kind", "Status", "status_number"]

#: No more digits than 64 bits hold: more take Python long, or are refused.
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Kind(Enum):
    """What a status means to the pull that it was sent to."""

    #: 100: the pull waits.
    HEARTBEAT = auto()
    #: 404 and 408: it has ended, with nothing wrong.
    ENDED = auto()
    #: 409 Message Size Exceeds MaxBytes: the next message is larger than what the pull has left.
    TOO_LARGE = auto()
    #: 409 Exceeded ...: refused because of a limit in the consumer's configuration.
    REFUSED = auto()
    #: 409 Leadership Change: all pulls of the consumer have ended.
    LEADERSHIP = auto()
    #: 409 Server Shutdown: the connection is about to go.
    SHUTDOWN = auto()
    #: 423: the pull carries the id of a pin that is gone.
    WRONG_PIN = auto()
    #: 503: nobody listens: JetStream or the consumer is not there.
    NO_RESPONDERS = auto()
    #: 409 Consumer Deleted.
    DELETED = auto()
    #: 409 Consumer is push based.
    PUSH = auto()
    #: 400 and 412: it will never be accepted as it is.
    BAD_REQUEST = auto()
    #: What this version has no name for.
    UNKNOWN = auto()


#: Kinds after which no pull can succeed.
FATAL: Final = frozenset({Kind.DELETED, Kind.PUSH, Kind.BAD_REQUEST})

_BY_CODE: Final = {
    100: Kind.HEARTBEAT,
    400: Kind.BAD_REQUEST,
    404: Kind.ENDED,
    408: Kind.ENDED,
    412: Kind.BAD_REQUEST,
    423: Kind.WRONG_PIN,
    503: Kind.NO_RESPONDERS,
}
#: What the text of a 409 begins with, in lower case.
_CONFLICTS: Final = (
    ("message size exceeds", Kind.TOO_LARGE),
    ("batch completed", Kind.ENDED),
    ("exceeded", Kind.REFUSED),
    ("consumer deleted", Kind.DELETED),
    ("consumer is push", Kind.PUSH),
    ("leadership change", Kind.LEADERSHIP),
    ("server shutdown", Kind.SHUTDOWN),
)


class Status(NamedTuple):
    """A status as it came.

    Attributes:
        kind: What it means.
        code: The server's number.
        description: The server's text, empty for a 503.
        messages: How many messages the pull had left, None if the server does not say.
        bytes: How many bytes the pull had left, None if the server does not say.
    """

    kind: Kind
    code: int
    description: str = ""
    messages: int | None = None
    bytes: int | None = None

    @classmethod
    def of(
        cls, code: int, description: str = "", messages: int | None = None, size: int | None = None
    ) -> Status:
        """A status of that number and text."""
        return cls(_kind_of(code, description), code, description, messages, size)

    @classmethod
    def from_headers(cls, headers: Mapping[str, str] | None) -> Status:
        """Read it from a message's headers, as nats-py gives them."""
        headers = headers or {}
        # nats-py takes the first header line of a 503 for its text, line break and all (2.16).
        text = headers.get("Description", "").strip().split("\r\n")[0]
        code = status_number(headers.get("Status")) or 0
        return cls.of(
            code,
            "" if code == 503 else text,
            status_number(headers.get("Nats-Pending-Messages")),
            status_number(headers.get("Nats-Pending-Bytes")),
        )

    def __str__(self) -> str:
        return f"{self.code} {self.description}".rstrip()


def _kind_of(code: int, description: str) -> Kind:
    if code != 409:
        return _BY_CODE.get(code, Kind.UNKNOWN)
    text = description.lower()
    return next((kind for start, kind in _CONFLICTS if text.startswith(start)), Kind.UNKNOWN)


def status_number(text: str | None) -> int | None:
    """A number in a header of a status; None if there is none. Servers may say -1 for a pull that is done."""
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    return max(int(text), 0)
