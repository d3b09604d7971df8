"""Statuses that a server sends to a pull: a code, a description and sometimes the rest of the pull.

Servers use one code, 409, for several conditions, so the description must tell them apart. This module is the
only place that parses descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

__all__ = ["NO_HEADERS", "Status", "StatusKind", "status_number"]

#: Description of a status without headers, which therefore has no code.
NO_HEADERS: Final = (
    "the NATS server sends no headers, and so no statuses: its option no_header_support is set"
)

#: At most 18 digits, which fit in 64 bits. Python parses longer numbers slowly or refuses them.
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class StatusKind(Enum):
    """Meaning of a status for the pull it answers."""

    #: 100: the pull is still waiting.
    HEARTBEAT = auto()
    #: 404, 408 and 409 Batch Completed: the pull has ended normally.
    ENDED = auto()
    #: 409 Message Size Exceeds MaxBytes: the next message is larger than the rest of the pull.
    TOO_LARGE = auto()
    #: 409 Exceeded ...: the pull exceeds a limit of the consumer's configuration.
    REFUSED = auto()
    #: 409 Leadership Change: all pulls of the consumer have ended.
    LEADERSHIP = auto()
    #: 409 Server Shutdown: the server is about to close the connection.
    SHUTDOWN = auto()
    #: 423: the pull carries the id of a pin that is no longer valid.
    WRONG_PIN = auto()
    #: 503: no responders; JetStream or the consumer is not available.
    NO_RESPONDERS = auto()
    #: 409 Consumer Deleted.
    DELETED = auto()
    #: 409 Consumer is push based.
    PUSH = auto()
    #: 400 and 412: the pull is invalid, so a retry cannot succeed.
    BAD_REQUEST = auto()
    #: Any other status.
    UNKNOWN = auto()


#: Kinds after which no pull can succeed.
FATAL: Final = frozenset({StatusKind.DELETED, StatusKind.PUSH, StatusKind.BAD_REQUEST})

_BY_CODE: Final = {
    100: StatusKind.HEARTBEAT,
    400: StatusKind.BAD_REQUEST,
    404: StatusKind.ENDED,
    408: StatusKind.ENDED,
    412: StatusKind.BAD_REQUEST,
    423: StatusKind.WRONG_PIN,
    503: StatusKind.NO_RESPONDERS,
}
#: Description prefixes of a 409, in lower case, and their meanings.
_CONFLICTS: Final = (
    ("message size exceeds", StatusKind.TOO_LARGE),
    ("batch completed", StatusKind.ENDED),
    ("exceeded", StatusKind.REFUSED),
    ("consumer deleted", StatusKind.DELETED),
    ("consumer is push", StatusKind.PUSH),
    ("leadership change", StatusKind.LEADERSHIP),
    ("server shutdown", StatusKind.SHUTDOWN),
)


class Status(NamedTuple):
    """Status of a pull.

    Attributes:
        kind: Meaning of the status.
        code: Status code.
        description: Description from the server, empty for a 503.
        messages: Messages the pull had left, None if the server does not say.
        bytes: Bytes the pull had left, None if the server does not say.
    """

    kind: StatusKind
    code: int
    description: str = ""
    messages: int | None = None
    bytes: int | None = None

    @classmethod
    def of(
        cls, code: int, description: str = "", messages: int | None = None, size: int | None = None
    ) -> Status:
        """Create a status from its code and description; the kind follows from both."""
        return cls(_kind_of(code, description), code, description, messages, size)

    @classmethod
    def from_headers(cls, headers: Mapping[str, str] | None) -> Status:
        """Read a status from message headers parsed by nats-py."""
        if not headers:
            return cls.of(0, NO_HEADERS)
        # nats-py 2.16 returns the first header line of a 503 as its description, line break included.
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


def _kind_of(code: int, description: str) -> StatusKind:
    if code != 409:
        return _BY_CODE.get(code, StatusKind.UNKNOWN)
    text = description.lower()
    return next((kind for start, kind in _CONFLICTS if text.startswith(start)), StatusKind.UNKNOWN)


def status_number(text: str | None) -> int | None:
    """Parse a number from a status header; None if there is none.

    Negative numbers become 0: servers may send -1 for a completed pull.
    """
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    return max(int(text), 0)
