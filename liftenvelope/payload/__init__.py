"""Payload formats: the bytes of messages as typed Arrow columns, and back. See docs/payloads.md."""

from liftenvelope.payload._arrow import ArrowBatches
from liftenvelope.payload._choice import PayloadChoice, as_payload
from liftenvelope.payload._formats import (
    BadValue,
    Decoded,
    PayloadDecoder,
    PayloadEncoder,
    PayloadFormat,
)
from liftenvelope.payload._json import Json
from liftenvelope.payload.errors import BadPayloadError

__all__ = [
    "ArrowBatches",
    "BadPayloadError",
    "BadValue",
    "Decoded",
    "Json",
    "PayloadChoice",
    "PayloadDecoder",
    "PayloadEncoder",
    "PayloadFormat",
    "as_payload",
]
