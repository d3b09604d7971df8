"""Names of destinations: exact ones for attributes of spans, and few ones for span names and metrics.

A subject may contain ids, so the number of subjects has no limit. Backends keep a time series for each name
in a metric, and group spans by their names. :class:`Destinations` therefore gives each destination a label,
and hands out a limited number of different labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from liftenvelope._checks import as_count
from liftenvelope.errors import UsageTypeError

__all__ = ["Destination", "Destinations", "default_template"]

#: Label of destinations beyond the limit.
OTHER: Final = "{other}"
#: Destinations to remember, so that the template function runs once for each.
_CACHED: Final = 1_024


class Destination(NamedTuple):
    """A destination.

    Attributes:
        name: Exact name.
        label: Name for span names and metrics.
    """

    name: str
    label: str

    @property
    def template(self) -> str | None:
        """Template that the name was made from; None if the label is the name."""
        return None if self.label == self.name else self.label


def default_template(name: str) -> str:
    """Replace the unique tokens of inboxes and of JetStream's ack subjects.

    Example:
        >>> default_template("orders.new"), default_template("_INBOX.Xy7.4")
        ('orders.new', '_INBOX.*')
        >>> default_template("$JS.ACK.ORDERS.packing.1.7.3.1700000000123456789.2")
        '$JS.ACK.*'
    """
    if name.startswith("_INBOX."):
        return "_INBOX.*"
    if name.startswith("$JS.ACK."):
        return "$JS.ACK.*"
    return name


class Destinations:
    """Finds the label of each destination.

    Args:
        template: Returns the label of a name; None for the name itself. Its errors reach the caller.
        limit: Maximum number of different labels. Further destinations have the label ``{other}``.
    """

    def __init__(self, template: Callable[[str], str | None], limit: int) -> None:
        if not callable(template):
            raise UsageTypeError(f"destination_template must be a function, got {type(template).__name__}")
        self._template = template
        self._limit = as_count("max_destinations", limit)
        self._labels: set[str] = set()
        self._known: dict[str, Destination] = {}

    def find(self, name: str) -> Destination:
        """Return a destination by its name."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            found = self._known[name] = Destination(name, self._label(name))
        return found

    def _label(self, name: str) -> str:
        label = self._template(name) or name
        if not isinstance(label, str):
            raise UsageTypeError(f"destination_template must return str or None, got {label!r} for {name!r}")
        if label not in self._labels:
            if len(self._labels) >= self._limit:
                return OTHER
            self._labels.add(label)
        return label
