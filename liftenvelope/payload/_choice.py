"""The argument ``payload=``: the name of a format, or a format with its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from liftenvelope._checks import as_choice
from liftenvelope.errors import UsageTypeError
from liftenvelope.payload._arrow import ArrowBatches
from liftenvelope.payload._described import described_format
from liftenvelope.payload._formats import PayloadFormat
from liftenvelope.payload._json import Json
from liftenvelope.payload._msgpack import Msgpack

__all__ = ["PayloadChoice", "as_payload"]

#: Name of a format, a format with its options, or a mapping with ``format`` and its options, as in TOML; None
#: or "raw" for the bytes as they are.
PayloadChoice: TypeAlias = "str | Mapping[str, Any] | PayloadFormat | None"

_RAW: Final = "raw"
#: Formats that need no option.
_NAMED: Final = {kind.name: kind for kind in (Json, Msgpack, ArrowBatches)}
#: Formats that a name alone does not describe, with an example.
_DESCRIBED: Final = {"avro": "Avro(schema=...)", "protobuf": "Protobuf(message=...)"}


def as_payload(payload: object) -> PayloadFormat | None:
    """Return the format of an argument ``payload``; None for bytes as they are.

    Raises:
        UsageError: There is no such format, or it needs options.
        UsageTypeError: The value is neither a name nor a format.
    """
    if payload is None or isinstance(payload, PayloadFormat):
        return payload
    if isinstance(payload, Mapping):
        return described_format(payload)
    if not isinstance(payload, str):
        kind = type(payload).__name__
        raise UsageTypeError(
            f"payload must be a name, a format of liftenvelope.payload, a mapping or None, got {kind}"
        )
    as_choice("payload", payload, (_RAW, *_NAMED), extra=_described())
    return None if payload == _RAW else _NAMED[payload]()


def _described() -> str:
    return "".join(f", or liftenvelope.payload.{example}" for example in _DESCRIBED.values())
