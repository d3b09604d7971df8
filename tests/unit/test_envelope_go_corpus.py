"""Envelopes that Go made, and what Go makes of broken ones (benchmarks/go/cmd/corpus writes the file)."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from liftenvelope.envelope import (
    Ack,
    Message,
    marshal_ack,
    marshal_message,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import (
    BadMagicError,
    ChecksumError,
    EnvelopeError,
    MalformedEnvelopeError,
    TruncatedEnvelopeError,
    UnsupportedVersionError,
    WrongTypeError,
)

Record = dict[str, Any]
FILE = Path(__file__).parent / "data" / "go_corpus.jsonl.gz"
RECORDS: list[Record] = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
VALID = [record for record in RECORDS if record["kind"] != "malformed"]
CANONICAL = [record for record in VALID if record.get("canonical")]
MALFORMED = [record for record in RECORDS if record["kind"] == "malformed"]

#: protobuf's names where ours differ.
NAMES = {
    "timestamp": "timestamp_ns",
    "replySubject": "reply_subject",
    "ackInbox": "ack_inbox",
    "correlationId": "correlation_id",
    "ackPolicy": "ack_policy",
    "partitionSubject": "partition_subject",
    "msgSubject": "msg_subject",
    "receptionTimestamp": "reception_timestamp_ns",
    "commitTimestamp": "commit_timestamp_ns",
    "ackError": "error",
}
#: Which class says what the server's check of the header says.
CLASSES: dict[str, tuple[type[EnvelopeError], ...]] = {
    "short": (TruncatedEnvelopeError,),
    "magic": (BadMagicError,),
    "version": (UnsupportedVersionError,),
    "crash": (TruncatedEnvelopeError,),
    "type": (WrongTypeError,),
    "crc header": (MalformedEnvelopeError,),
    "crc": (ChecksumError,),
    "protobuf": (MalformedEnvelopeError, TruncatedEnvelopeError),
}


def expected(record: Record, kind: str) -> Message | Ack:
    """The value that Go decoded the record to."""
    fields = {NAMES.get(name, name): value for name, value in record.get("fields", {}).items()}
    for name in ("key", "value"):
        if name in fields:
            fields[name] = bytes.fromhex(fields[name])
    if "headers" in fields:
        fields["headers"] = {name: bytes.fromhex(value) for name, value in fields["headers"]}
    return Message(**fields) if kind == "message" else Ack(**fields)


def decoded(record: Record, kind: str) -> Message | Ack:
    data = bytes.fromhex(record["hex"])
    return unmarshal_message(data) if kind == "message" else unmarshal_ack(data)


def stricter_here(record: Record) -> bool:
    """The two rules that are stricter than Go's, as the class of the error and its place say."""
    try:
        decoded(record, record["type"])
    except EnvelopeError as error:
        text: str = error.args[0]
        return text == "groups nest deeper than 100" or (
            text.endswith("the least is 8") and error.offset == 5
        )
    return False


def name_of(record: Record) -> str:
    return f"{record['what']}-{record['hex'][:24]}"


def in_groups(records: list[Record]) -> dict[str, list[Record]]:
    """Records by what they show. A test for each of thousands of records costs more than its work."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["what"], []).append(record)
    return groups


def test_the_corpus_has_not_shrunk() -> None:
    kinds = Counter(record["kind"] for record in RECORDS)
    assert kinds["message"] >= 400
    assert kinds["ack"] >= 200
    assert kinds["malformed"] >= 900
    assert set(CLASSES) == {record["reason"] for record in MALFORMED if "reason" in record}


@pytest.mark.parametrize("what", in_groups(VALID))
def test_decodes_to_the_same(what: str) -> None:
    for record in in_groups(VALID)[what]:
        assert decoded(record, record["kind"]) == expected(record, record["kind"]), name_of(record)


@pytest.mark.parametrize("what", in_groups(CANONICAL))
def test_encodes_to_the_same_bytes(what: str) -> None:
    for record in in_groups(CANONICAL)[what]:
        value, crc = expected(record, record["kind"]), record.get("crc", False)
        made = marshal_message(value, crc=crc) if isinstance(value, Message) else marshal_ack(value, crc=crc)
        assert made.hex() == record["hex"], name_of(record)


@pytest.mark.parametrize("what", in_groups(MALFORMED))
def test_verdict_on_broken_ones(what: str) -> None:
    for record in in_groups(MALFORMED)[what]:
        check_verdict(record)


def check_verdict(record: Record) -> None:
    if record["error"]:
        with pytest.raises(EnvelopeError) as caught:
            decoded(record, record["type"])
        if not stricter_here(record):
            assert isinstance(caught.value, CLASSES[record["reason"]]), name_of(record)
    elif not stricter_here(record):
        assert decoded(record, record["type"]) == expected(record, record["type"]), name_of(record)


def test_how_often_we_are_stricter() -> None:
    """Groups nested more than 100 deep, and header lengths below 8, which Go reads as a payload."""
    stricter = [record for record in MALFORMED if not record["error"] and stricter_here(record)]
    assert Counter(record["what"] for record in stricter) == {
        "groups 101 deep": 1,
        "groups 102 deep": 1,
        "groups 200 deep": 1,
        "groups 1000 deep": 1,
        "header groups 101 deep": 1,
        "header length below 8": 4,
    }
