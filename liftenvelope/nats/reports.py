"""Passes the reports of a server, such as a refused permission, to this package too.

nats-py passes each report to the user's ``error_cb``, which this module leaves alone, and keeps the last one.
Both get it in lower case, but subjects differ by case. While nats-py processes a report, its parser still
holds the line that the server has sent.

A report holds a subject as Go's ``%q`` writes it: in quotes, with backslash escapes for quotes, backslashes,
characters that can't be printed, and bytes that are not UTF-8.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from nats.protocol.parser import PERMISSIONS_ERR

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["OnRefused", "Violation", "ViolationWatch", "read_refusals", "refused_subject", "violation_in"]

#: Report of a refused permission; the name of a queue group may follow.
_VIOLATION: Final = re.compile(
    rf'{PERMISSIONS_ERR} for (publish|subscription) to "((?:[^"\\]|\\.)*)"', re.IGNORECASE
)
#: Start of the report about a refused publish, as the server sends it.
_REFUSED: Final = "Permissions Violation for Publish "
_ESCAPE: Final = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MAX_ASCII: Final = 0x7F
#: Offset of the lone surrogates for bytes that are not UTF-8 (PEP 383).
_BYTE: Final = 0xDC00
#: Name of the method of nats-py's client that its parser calls with each report.
_METHOD: Final = "_process_err"

#: Called with the number of refused publishes by subject. It must be fast and must not raise.
OnRefused = Callable[[Mapping[str, int]], None]


class Violation(NamedTuple):
    """A refused permission.

    Attributes:
        verb: ``publish`` or ``subscription``.
        subject: The subject, in lower case if the report is.
    """

    verb: str
    subject: str


def violation_in(text: str) -> Violation | None:
    r"""Return the refused permission that a report or a text with one tells of; None for none.

    Example:
        >>> violation_in(r'nats: permissions violation for publish to "a\"b\\c"')
        Violation(verb='publish', subject='a"b\\c')
    """
    found = _VIOLATION.search(text)
    return None if found is None else Violation(found[1].lower(), _ESCAPE.sub(_unescaped, found[2]))


def _unescaped(escape: re.Match[str]) -> str:
    kind, digits = escape[1][0], escape[1][1:]
    if not digits:
        return _ESCAPES.get(kind, kind)
    number = int(digits, 16)
    is_byte = kind == "x" and number > _MAX_ASCII
    return chr(_BYTE + number) if is_byte else chr(min(number, sys.maxunicode))


def refused_subject(report: str) -> str | None:
    """Return the subject of a refused publish; None if the report is another one, or in lower case.

    Example:
        >>> refused_subject('Permissions Violation for Publish to "Orders"')
        'Orders'
        >>> refused_subject("Stale Connection")
    """
    found = violation_in(report) if report.startswith(_REFUSED) else None
    return None if found is None else found.subject


class ViolationWatch:
    """Notices in a ``with`` block that the server refuses one thing, whatever else it reports meanwhile.

    The last report, which nats-py keeps, may be another one by the time somebody looks: about another
    subscription, or a publish of another task.

    Args:
        nc: Connection, whose reports are read.
        verb: ``publish`` or ``subscription``.
        subject: The subject. Its case does not matter: nats-py's reports are in lower case.

    Attributes:
        violation: What the watch notices, with the subject in lower case.
    """

    def __init__(self, nc: Client, verb: Literal["publish", "subscription"], subject: str) -> None:
        self._nc = nc
        self.violation = Violation(verb, subject.lower())
        self._before = nc.last_error
        self._report = ""

    def __enter__(self) -> ViolationWatch:
        self._reports = _reports_of(self._nc)
        self._reports.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._reports.remove(self)

    @property
    def report(self) -> str:
        """Report of the refusal, as nats-py notes it; empty for none since the watch was made."""
        last = self._nc.last_error
        if not self._report and last is not self._before:  # if nats-py no longer passes each report
            self.read(_violation_in_lower_case(str(last)), str(last))
        return self._report

    def read(self, violation: Violation | None, report: str) -> None:
        """Take a report, and the violation in it."""
        if violation == self.violation:
            self._report = report


def _violation_in_lower_case(report: str) -> Violation | None:
    found = violation_in(report)
    return None if found is None else Violation(found.verb, found.subject.lower())


def read_refusals(nc: Client, on_refused: OnRefused) -> Callable[[], None]:
    """Call a function with the publishes of a connection that the server refuses, from now on.

    The calls come soon, after the acks that the server has sent before the refusals. There are none if this
    nats-py version hides the case of the subjects. Returns a function that ends this.
    """
    return _reports_of(nc).ask(on_refused)


class _Reports:
    """Replaces the method of one connection that nats-py calls with each report, while somebody reads.

    Args:
        nc: The connection.
    """

    def __init__(self, nc: Any) -> None:
        self._nc = nc
        self._own = vars(nc).get(_METHOD)  # the application's
        self._process: Any = getattr(nc, _METHOD, None)
        self._watches: dict[Violation, set[ViolationWatch]] = {}
        self._asking: dict[object, OnRefused] = {}
        self._refused: Counter[str] = Counter()

    def add(self, watch: ViolationWatch) -> None:
        """Pass reports of its violation to a watch."""
        self._watches.setdefault(watch.violation, set()).add(watch)

    def remove(self, watch: ViolationWatch) -> None:
        """Pass no more reports to a watch."""
        watches = self._watches[watch.violation]
        watches.remove(watch)
        if not watches:
            del self._watches[watch.violation]
        self._leave_if_unused()

    def ask(self, on_refused: OnRefused) -> Callable[[], None]:
        """Pass refused publishes to a function. Return a function that ends this."""
        key = object()
        self._asking[key] = on_refused

        def remove() -> None:
            self._asking.pop(key, None)
            self._leave_if_unused()

        return remove

    def _leave_if_unused(self) -> None:
        if self._watches or self._asking or vars(self._nc).get(_METHOD) is not self:
            return  # an application's replacement may call this one
        if self._own is None:
            delattr(self._nc, _METHOD)
        else:
            setattr(self._nc, _METHOD, self._own)

    async def __call__(self, text: str) -> None:
        """Process a report, as nats-py's parser passes it on."""
        if self._watches:
            report = "nats: " + text.strip("'")
            found = _violation_in_lower_case(report)
            for watch in () if found is None else self._watches.get(found, ()):
                watch.read(found, report)
        subject = refused_subject(_as_sent(self._nc, text)) if self._asking else None
        if subject is not None:
            if not self._refused:  # one call for all of a read: any client may cause many
                asyncio.get_running_loop().call_soon(self._tell)
            self._refused[subject] += 1
        await self._process(text)

    def _tell(self) -> None:
        refused, self._refused = self._refused, Counter()
        for on_refused in list(self._asking.values()):
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
