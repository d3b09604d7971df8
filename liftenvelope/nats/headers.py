"""Convert between NATS header blocks and nats-py's mappings, and check that the server takes headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UnsupportedByServerError

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Headers", "check_takes_headers", "header_block", "headers_of"]

_VERSION: Final = b"NATS/1.0"


class Headers(Mapping[str, str]):
    """Mapping from each header name to its last value; ``get_all`` returns all values of a name.

    Names are case-sensitive.

    Args:
        pairs: Names and values in order. A name may occur several times.

    Attributes:
        pairs: Names and values in order, as a tuple.

    Example:
        >>> headers = Headers([("Via", "a"), ("Tag", "x"), ("Via", "b")])
        >>> headers["Via"], headers.get_all("Via"), headers.get_all("None")
        ('b', ('a', 'b'), ())
        >>> headers == {"Via": "b", "Tag": "x"}
        True
    """

    __slots__ = ("_last", "pairs")

    pairs: tuple[tuple[str, str], ...]

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)
        self._last = dict(self.pairs)

    def get_all(self, name: str) -> tuple[str, ...]:
        """Return all values of a name in order; an empty tuple if the name is missing."""
        return tuple(value for each, value in self.pairs if each == name)

    def __getitem__(self, name: str) -> str:
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"Headers({list(self.pairs)!r})"


def header_block(headers: Mapping[str, str] | None) -> bytes | None:
    r"""Rebuild the header block from nats-py's mapping, as far as the mapping keeps its content.

    nats-py drops repeated names, and does not distinguish a header ``Status`` from a status of the server.

    >>> header_block({"Status": "408", "Description": "Request Timeout", "A": "b"})
    b'NATS/1.0 408 Request Timeout\r\nA: b\r\n\r\n'
    """
    if headers is None:
        return None
    left = dict(headers)
    words = ["NATS/1.0", left.pop("Status", ""), left.pop("Description", "")]
    if "\n" in words[2]:  # nats-py reads the next line as the text of a status without text
        name, _, value = words[2].strip().partition(": ")
        words[2] = ""
        left.setdefault(name, value)
    lines = [" ".join(filter(None, words)), *(f"{name}: {value}" for name, value in left.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def headers_of(block: bytes) -> Headers:
    r"""Parse a block as nats-py does, but keep all values of a name; invalid UTF-8 is replaced.

    >>> headers_of(b"NATS/1.0\r\nA: b\r\nA:c\r\nno name\r\n\r\n")
    Headers([('A', 'b'), ('A', 'c')])
    >>> headers_of(b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
    Headers([('Status', '100'), ('Description', 'Idle Heartbeat')])
    """
    first, *lines = block.split(b"\r\n")
    pairs = _status_of(first.removeprefix(_VERSION))
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.strip()
        if colon and name.isascii() and len(name.split()) <= 1:
            pairs.append((name.decode(), value.strip().decode("utf-8", "replace")))
    return Headers(pairs)


def check_takes_headers(nc: Client) -> None:
    """Raise UnsupportedByServerError if the server takes no headers: it would end the connection."""
    if getattr(nc, "_server_info", {}).get("headers", True) is False:
        text = "the NATS server must take headers, but its option no_header_support is set: nothing was sent"
        raise UnsupportedByServerError(text)


def _status_of(rest: bytes) -> list[tuple[str, str]]:
    """Parse the text after the version into status code and description; usually there is none."""
    if not rest.startswith(b" "):
        return []
    code, text = rest[1:4].strip(), rest[5:]
    pairs = [("Status", code.decode())] if code.isdigit() else []
    return [*pairs, ("Description", text.decode("utf-8", "replace"))] if text else pairs
