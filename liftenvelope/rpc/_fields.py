"""Validation of HTTP/2 header fields: RFC 9113, 8.2 and 8.3.

h2 can validate too, but checks each field against each rule, which costs a tenth of the time of a call. Calls
repeat the same few header blocks, so the last valid block of each kind is cached and compared first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from liftenvelope.rpc._http2 import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["REQUEST", "RESPONSE", "TRAILERS", "Block", "FieldRules"]

# Pseudo-header fields: required, optional.
Block: TypeAlias = tuple[frozenset[bytes], frozenset[bytes]]
REQUEST: Final[Block] = (frozenset({b":method", b":scheme", b":path"}), frozenset({b":authority"}))
RESPONSE: Final[Block] = (frozenset({b":status"}), frozenset())
TRAILERS: Final[Block] = (frozenset(), frozenset())

# 8.2.1: visible ASCII without upper-case letters. A colon may only come first.
_NAME: Final = re.compile(rb"(?:[!-9;-@\[-~]|:[!-9;-@\[-~])[!-9;-@\[-~]*")
_VALUE: Final = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])")
# 8.2.2: fields that belong to one connection.
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)


class FieldRules:
    """Validates the header blocks of one connection."""

    def __init__(self) -> None:
        self._sound: dict[Block, Sequence[tuple[bytes, bytes]]] = {}

    def check(self, fields: Sequence[tuple[bytes, bytes]], block: Block) -> None:
        """Check the fields of a received header block.

        Args:
            fields: Names and values of the fields.
            block: Kind of block: ``REQUEST``, ``RESPONSE`` or ``TRAILERS``.

        Raises:
            ProtocolError: A field breaks a rule.
        """
        if fields == self._sound.get(block):
            return
        _check_pseudo_fields(fields, *block)
        for name, value in fields:
            _check_field(name, value)
        if block is REQUEST:
            _check_authority(fields)
        self._sound[block] = fields


def _check_pseudo_fields(
    fields: Iterable[tuple[bytes, bytes]], needed: frozenset[bytes], allowed: frozenset[bytes]
) -> None:
    names = [name for name, _ in fields]
    pseudo = [name for name in names if name.startswith(b":")]
    if pseudo != names[: len(pseudo)] or len(set(pseudo)) != len(pseudo):
        raise ProtocolError(f"pseudo-header fields twice, or after others: {names}")
    if needed - set(pseudo) or set(pseudo) - needed - allowed:
        raise ProtocolError(f"pseudo-header fields {pseudo}, expected {sorted(needed)}")


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ProtocolError(f"a header field has a forbidden character: {name!r}: {value!r}")
    if name in _OF_CONNECTIONS or (name == b"te" and value.lower() != b"trailers"):
        raise ProtocolError(f"HTTP/2 does not allow this header field: {name!r}: {value!r}")
    if name == b":path" and not value:
        raise ProtocolError("an empty path")


def _check_authority(fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Check that ``:authority`` and ``host`` of a request name exactly one server (8.3.1)."""
    hosts = [value for name, value in fields if name == b"host"]
    named = {value for name, value in fields if name in (b":authority", b"host")}
    if len(named) != 1 or len(hosts) > 1:
        raise ProtocolError(f"a request must name one server, got {sorted(named)}")
