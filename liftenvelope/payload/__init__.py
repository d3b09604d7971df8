"""Payload formats: the bytes of messages as typed Arrow columns, and back. See docs/payloads.md."""

from liftenvelope.payload._arrow import ArrowBatches
from liftenvelope.payload._avro import Avro
from liftenvelope.payload._choice import PayloadChoice, as_payload
from liftenvelope.payload._described import described_text
from liftenvelope.payload._formats import (
    BadValue,
    Decoded,
    InferredFormat,
    PayloadDecoder,
    PayloadEncoder,
    PayloadFormat,
)
from liftenvelope.payload._json import Json
from liftenvelope.payload._msgpack import Msgpack
from liftenvelope.payload._protobuf import Protobuf
from liftenvelope.payload.errors import BadPayloadError

__all__ = [
    "ArrowBatches",
    "Avro",
    "BadPayloadError",
    "BadValue",
    "Decoded",
    "InferredFormat",
    "Json",
    "Msgpack",
    "PayloadChoice",
    "PayloadDecoder",
    "PayloadEncoder",
    "PayloadFormat",
    "Protobuf",
    "as_payload",
    "described_text",
]
