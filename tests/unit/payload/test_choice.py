"""The argument ``payload``, and errors that travel."""

from __future__ import annotations

import pickle

import pytest

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import ArrowBatches, BadPayloadError, Json, Msgpack, as_payload


def test_names_are_formats_with_default_options() -> None:
    assert as_payload(None) is None
    assert as_payload("raw") is None
    assert (as_payload("json"), as_payload("msgpack"), as_payload("arrow")) == (
        Json(),
        Msgpack(),
        ArrowBatches(),
    )
    kind = Json(prefix="p_")
    assert as_payload(kind) is kind


@pytest.mark.parametrize("name", ["avro", "protobuf", "JSON", ""])
def test_unknown_name_is_refused_with_the_formats(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"payload must be one of 'raw', 'json', .*Avro\(schema=...\).*, got "
    ):
        as_payload(name)


def test_other_value_is_refused() -> None:
    with pytest.raises(UsageTypeError, match=r"payload must be a name, a format .*, got ABCMeta"):
        as_payload(Json)
    with pytest.raises(UsageTypeError, match="prefix must be str, got int"):
        Json(prefix=5)  # type: ignore[arg-type]


def test_bad_payload_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(BadPayloadError("text", "ORDERS", 1, 7, "why")))
    assert isinstance(error, BadPayloadError)
    assert (str(error), error.stream, error.partition, error.offset, error.reason) == (
        "text",
        "ORDERS",
        1,
        7,
        "why",
    )
