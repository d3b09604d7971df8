"""Header blocks and what nats-py makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["header_block", "headers_of"]

_VERSION: Final = b"NATS/1.0"


def header_block(headers: Mapping[str, str] | None) -> bytes | None:
    r"""Return the headers as bytes again, as far as nats-py has kept what was in them.

    It does not keep repeated names, nor what tells a header ``Status`` from a status of the server.

    >>> header_block({"Status": "408", "Description": "Request Timeout", "A": "b"})
    b'NATS/1.0 408 Request Timeout\r\nA: b\r\n\r\n'
    """
    if headers is None:
        return None
    left = dict(headers)
    words = ["NATS/1.0", left.pop("Status", ""), left.pop("Description", "")]
    if "\n" in words[2]:  # nats-py takes the next line for the text of a status that has none
        name, _, value = words[2].strip().partition(": ")
        words[2] = ""
        left.setdefault(name, value)
    lines = [" ".join(filter(None, words)), *(f"{name}: {value}" for name, value in left.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def headers_of(block: bytes) -> dict[str, str]:
    r"""Read a block as nats-py does: the last value of a name, bytes that are no UTF-8 replaced.

    >>> headers_of(b"NATS/1.0\r\nA: b\r\nA:c\r\nno name\r\n\r\n")
    {'A': 'c'}
    >>> headers_of(b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
    {'Status': '100', 'Description': 'Idle Heartbeat'}
    """
    first, *lines = block.split(b"\r\n")
    headers = _status_of(first.removeprefix(_VERSION))
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.strip()
        if colon and name.isascii() and len(name.split()) <= 1:
            headers[name.decode()] = value.strip().decode("utf-8", "replace")
    return headers


def _status_of(rest: bytes) -> dict[str, str]:
    """What stands behind the version: usually nothing."""
    if not rest.startswith(b" "):
        return {}
    code, text = rest[1:4].strip(), rest[5:]
    headers = {"Status": code.decode()} if code.isdigit() else {}
    if text:
        headers["Description"] = text.decode("utf-8", "replace")
    return headers
