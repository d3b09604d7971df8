"""Passes the reports of a server, such as a refused permission, to this package too.

nats-py passes each report to the user's ``error_cb``, which this module leaves alone, and keeps the last one.
Both get it in lower case, but subjects differ by case. While nats-py processes a report, its parser still
holds the line that the server has sent.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["OnRefused", "read_refusals", "read_reports", "refused_subject"]

_REFUSED: Final = re.compile(r'Permissions Violation for Publish to "(.+)"')
#: Name of the method of nats-py's client that its parser calls with each report.
_METHOD: Final = "_process_err"

_T = TypeVar("_T")

#: Called with the number of refused publishes by subject. It must be fast and must not raise.
OnRefused = Callable[[Mapping[str, int]], None]


def refused_subject(report: str) -> str | None:
    """Return the subject of a refused publish; None if the report is another one, or in lower case.

    Example:
        >>> refused_subject('Permissions Violation for Publish to "Orders"')
        'Orders'
        >>> refused_subject("Stale Connection")
    """
    found = _REFUSED.fullmatch(report)
    return None if found is None else found[1]


def read_reports(nc: Client, read: Callable[[str], None]) -> Callable[[], None]:
    """Call a function at once with each report that nats-py processes. Return a function that ends this.

    Args:
        nc: Connection, whose reports are read.
        read: Called with the text of a report as nats-py notes it, in lower case. It must be fast and must
            not raise.
    """
    reports = _reports_of(nc)
    return reports.add(reports.readers, read)


def read_refusals(nc: Client, on_refused: OnRefused) -> Callable[[], None]:
    """Call a function with the publishes of a connection that the server refuses, from now on.

    The calls come soon, after the acks that the server has sent before the refusals. There are none if this
    nats-py version hides the case of the subjects. Returns a function that ends this.
    """
    reports = _reports_of(nc)
    return reports.add(reports.asking, on_refused)


class _Reports:
    """Replaces the method of one connection that nats-py calls with each report, while somebody reads.

    Args:
        nc: The connection.
    """

    def __init__(self, nc: Any) -> None:
        self._nc = nc
        self._own = vars(nc).get(_METHOD)  # the application's
        self._process: Any = getattr(nc, _METHOD, None)
        self.readers: dict[object, Callable[[str], None]] = {}
        self.asking: dict[object, OnRefused] = {}
        self._refused: Counter[str] = Counter()

    def add(self, table: dict[object, _T], function: _T) -> Callable[[], None]:
        """Add a function to one of the two tables. Return a function that removes it."""
        key = object()
        table[key] = function

        def remove() -> None:
            table.pop(key, None)
            self._leave_if_unused()

        return remove

    def _leave_if_unused(self) -> None:
        if self.readers or self.asking or vars(self._nc).get(_METHOD) is not self:
            return  # an application's replacement may call this one
        if self._own is None:
            delattr(self._nc, _METHOD)
        else:
            setattr(self._nc, _METHOD, self._own)

    async def __call__(self, text: str) -> None:
        """Process a report, as nats-py's parser passes it on."""
        for read in list(self.readers.values()):
            read("nats: " + text.strip("'"))
        subject = refused_subject(_as_sent(self._nc, text)) if self.asking else None
        if subject is not None:
            if not self._refused:  # one call for all of a read: any client may cause many
                asyncio.get_running_loop().call_soon(self._tell)
            self._refused[subject] += 1
        await self._process(text)

    def _tell(self) -> None:
        refused, self._refused = self._refused, Counter()
        for on_refused in list(self.asking.values()):
            on_refused(refused)


def _reports_of(nc: Any) -> _Reports:
    current = vars(nc).get(_METHOD)
    if not isinstance(current, _Reports):
        current = _Reports(nc)
        setattr(nc, _METHOD, current)
    return current


def _as_sent(nc: Any, text: str) -> str:
    """Return a report in the case in which the server has sent it; in lower case if that is not known."""
    text = text.strip("'")
    parser = getattr(nc, "_ps", None)
    buffer = getattr(getattr(parser, "_parser", parser), "buf", None)  # that behind ours, if there is one
    if not isinstance(buffer, bytearray):
        return text
    line = bytes(buffer[: max(buffer.find(b"\r\n"), 0)]).decode(errors="replace")
    sent = line.removeprefix("-ERR").strip().strip("'")
    return sent if sent.lower() == text else text
