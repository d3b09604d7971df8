"""Messages of groups as Arrow columns, from every kind of source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from liftenvelope.envelope import Message as LiftbridgeMessage
from liftenvelope.errors import UsageError
from liftenvelope.group import SourceMessage, TopicPartition
from liftenvelope.group._rows import SCHEMA, rows_of
from liftenvelope.jetstream import Message
from liftenvelope.jetstream.message import Recorder
from liftenvelope.nats.headers import Headers

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
SECONDS = 1_700_000_000


def stored(offset: int, headers: Any = None) -> SourceMessage:
    """A message of a JetStream topic."""
    reply = f"$JS.ACK.ORDERS.worker.1.{offset + 1}.1.{SECONDS * 10**9}.0"
    message = Message("orders.new", reply, b"%d" % offset, headers, Recorder())
    return SourceMessage(offset, message.data, message)


def test_rows_of_several_partitions_keep_their_order() -> None:
    batch = rows_of([(SECOND, [stored(3), stored(5)]), (FIRST, [stored(4)])])
    assert batch.schema == SCHEMA
    moment = datetime.fromtimestamp(SECONDS, UTC)
    assert [{**row, "timestamp": row["timestamp"].to_pydatetime()} for row in batch.to_pylist()] == [
        {
            "topic": "orders",
            "partition": partition,
            "offset": offset,
            "value": b"%d" % offset,
            "key": None,
            "timestamp": moment,
            "subject": "orders.new",
            "headers": [],
        }
        for partition, offset in ((1, 3), (1, 5), (0, 4))
    ]


def test_headers_of_some_messages() -> None:
    given = Headers([("Via", "a"), ("Tag", "x"), ("Via", "ö")])
    batch = rows_of([(FIRST, [stored(1), stored(2, given), stored(3, {"a": "1"})])])
    assert batch.column("headers").to_pylist() == [
        [],
        [("Via", b"a"), ("Via", "ö".encode()), ("Tag", b"x")],
        [("a", b"1")],
    ]


def test_sources_of_different_kinds_in_one_batch() -> None:
    liftbridge = LiftbridgeMessage(
        offset=7, key=b"k", value=b"tea", timestamp_ns=SECONDS * 10**9, subject="s", headers={"h": b"v"}
    )
    batch = rows_of(
        [
            (FIRST, [stored(1, {"a": "1"})]),
            (TopicPartition("teas", 0), [SourceMessage(7, b"tea", liftbridge)]),
            (TopicPartition("numbers", 2), [SourceMessage(9, b"9", None)]),
        ]
    )
    assert batch.schema == SCHEMA
    rows = batch.to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("orders", 0, 1, b"1"),
        ("teas", 0, 7, b"tea"),
        ("numbers", 2, 9, b"9"),
    ]
    assert [(row["key"], row["subject"], row["headers"]) for row in rows] == [
        (None, "orders.new", [("a", b"1")]),
        (b"k", "s", [("h", b"v")]),
        (None, None, None),
    ]
    assert rows[0]["timestamp"] == rows[1]["timestamp"]
    assert rows[2]["timestamp"] is None


def test_message_without_a_consumers_reply_is_an_error() -> None:
    message = Message("a", "_INBOX.x", b"", None, Recorder())
    with pytest.raises(UsageError, match="must be the reply subject"):
        rows_of([(FIRST, [SourceMessage(0, b"", message)])])
