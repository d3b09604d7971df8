"""Policy files: permissions and roles of clients, in the CSV format of casbin, which Liftbridge uses.

A client has its own permissions and those of all its roles. As in casbin, roles and clients share their
names: a client whose certificate has the name of a role has the permissions of that role.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from liftenvelope.errors import UsageError
from liftenvelope.gateway._partitions.recordings import covers
from liftenvelope.jetstream.names import check_filter

__all__ = ["RECORD_SUBJECT", "Policy"]

#: Method name in the lines whose resource is a NATS subject.
RECORD_SUBJECT: Final = "RecordSubject"
#: Number of fields by the kind of the line.
_FIELDS: Final = {"p": 4, "g": 3}
#: Longest part of a wrong line in an error text, in characters.
_LONGEST_SHOWN: Final = 200
_MOST_LINES: Final = 100_000
_MOST_ROLES: Final = 1_000
#: Roles of roles, as deep as casbin follows them.
_DEEPEST: Final = 10


@dataclass(slots=True)
class _Resources:
    """Resources on which a method is allowed.

    Attributes:
        names: Literal resources.
        beginnings: Beginnings of resources, from lines such as ``orders*``.
    """

    names: set[str] = field(default_factory=set)
    beginnings: set[str] = field(default_factory=set)

    def have(self, resource: str) -> bool:
        """Return True if the resource is one of them."""
        return resource in self.names or any(map(resource.startswith, self.beginnings))


class Policy:
    r"""Permissions of clients, parsed from a policy file.

    Args:
        text: Content of the file. Default: empty, nothing is allowed.

    Raises:
        UsageError: A line can't be parsed, or there are too many lines or roles. The message contains the
            number of the line.

    Example:
        >>> policy = Policy("p, client1, orders*, Subscribe")
        >>> policy.allows("client1", "orders-eu", "Subscribe"), policy.allows("client1", "a", "Subscribe")
        (True, False)
        >>> policy = Policy("p, writers, orders, Publish\ng, client1, writers")
        >>> policy.allows("client1", "orders", "Publish"), policy.allows("client2", "orders", "Publish")
        (True, False)
        >>> policy = Policy("p, client1, orders.>, RecordSubject")
        >>> policy.may_record("client1", "orders.*"), policy.may_record("client1", ">")
        (True, False)
    """

    def __init__(self, text: str = "") -> None:
        self._allowed: dict[tuple[str, str], _Resources] = {}
        self._lines: set[tuple[str, ...]] = set()
        # Direct roles by client or role, each with the number of its line.
        self._roles: dict[str, dict[str, int]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            kind, *fields = _parsed(number, line)
            if kind == "g":
                self._roles.setdefault(fields[0], {}).setdefault(fields[1], number)
            else:
                self._allow(number, *fields)
        self._names = {client: self._with_roles(client) for client in self._roles}

    def _allow(self, number: int, client: str, resource: str, method: str) -> None:
        self._lines.add((client, resource, method))
        resources = self._allowed.setdefault((client, method), _Resources())
        if method == RECORD_SUBJECT:
            _check_subject(number, resource)
        elif "*" in resource[:-1]:
            shown = resource[:_LONGEST_SHOWN]
            raise UsageError(f"line {number}: * must be the last character of a resource, got {shown!r}")
        elif resource.endswith("*"):
            resources.beginnings.add(resource[:-1])
            return
        resources.names.add(resource)

    def _with_roles(self, client: str) -> tuple[str, ...]:
        """Return a client and all its roles, each once: roles may contain each other."""
        found, newest = {client: None}, [client]
        for depth in range(_DEEPEST + 1):
            pairs = [pair for name in newest for pair in self._roles.get(name, {}).items()]
            new = {role: number for role, number in pairs if role not in found}
            if not new:
                break
            if depth == _DEEPEST or len(found) + len(new) - 1 > _MOST_ROLES:
                limits = f"at most {_MOST_ROLES:,} roles, nested at most {_DEEPEST} deep"
                raise UsageError(f"line {min(new.values())}: {client!r} must have {limits}, got more")
            newest = list(new)
            found |= dict.fromkeys(newest)
        return tuple(found)

    def _of(self, client: str, method: str) -> Iterable[_Resources]:
        """Yield the resources on which a client may call a method, its own and those of its roles."""
        for name in self._names.get(client, (client,)):
            if (resources := self._allowed.get((name, method))) is not None:
                yield resources

    def allows(self, client: str, resource: str, method: str) -> bool:
        """Return True if a client may call a method on a resource."""
        return any(resources.have(resource) for resources in self._of(client, method))

    def allows_any(self, client: str, method: str) -> bool:
        """Return True if a client may call a method on at least one resource."""
        return any(True for _ in self._of(client, method))

    def may_record(self, client: str, subject: str) -> bool:
        """Return True if a client may create streams on a subject, which may have wildcards."""
        granted = (name for resources in self._of(client, RECORD_SUBJECT) for name in resources.names)
        return any(covers(one, subject) for one in granted)

    def __len__(self) -> int:
        return len(self._lines)


def _parsed(number: int, line: str) -> list[str]:
    """Return the fields of a line.

    Raises:
        UsageError: The line is neither a permission nor a role, or is one too many.
    """
    if number > _MOST_LINES:
        raise UsageError(f"line {number:,} must not be there: a policy has at most {_MOST_LINES:,} lines")
    try:
        fields = [part.strip() for part in next(csv.reader([line], skipinitialspace=True))]
    except csv.Error:  # such as a field over 128 KiB
        fields = []
    if not fields or len(fields) != _FIELDS.get(fields[0]) or not all(fields):
        shown = f"{line[:_LONGEST_SHOWN]!r}{'...' if len(line) > _LONGEST_SHOWN else ''}"
        forms = "'p, client, stream, method' or 'g, client, role'"
        raise UsageError(f"line {number} must be {forms}, got {shown}")
    return fields


def _check_subject(number: int, subject: str) -> None:
    try:
        check_filter(subject)
    except UsageError as exc:
        raise UsageError(f"line {number}: {exc}") from exc
