"""Metadata: as brokers say it, and put together from what several of them say."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.client.metadata import (
    BrokerInfo,
    EventTimes,
    GroupInfo,
    Metadata,
    PartitionInfo,
    StreamInfo,
    creation_time,
    make_metadata,
    merged,
    partition_info,
    read_metadata,
)
from liftenvelope.errors import NoSuchStreamError, ServerProtocolError


def answer() -> api_pb2.FetchMetadataResponse:
    found = api_pb2.FetchMetadataResponse()
    found.brokers.add(id="a", host="10.0.0.1", port=1, partitionCount=5, leaderCount=2)
    found.brokers.add(id="b", host="::1", port=2)
    stream = found.streamMetadata.add(name="foo", subject="bar", creationTimestamp=77)
    for number in (2, 0, 1):
        stream.partitions[number].id = number
        stream.partitions[number].leader = "ab"[number % 2]
        stream.partitions[number].highWatermark = number * 10
    found.streamMetadata.add(name="gone", error=api_pb2.StreamMetadata.UNKNOWN_STREAM)
    found.groupMetadata.add(groupId="g", coordinator="a", epoch=9)
    found.groupMetadata.add(groupId="h", error=api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP)
    return found


class TestRead:
    def test_everything(self) -> None:
        found = read_metadata(answer())
        assert dict(found.brokers) == {
            "a": BrokerInfo("a", "10.0.0.1", 1, 5, 2),
            "b": BrokerInfo("b", "::1", 2),
        }
        assert found.addresses == ("10.0.0.1:1", "[::1]:2")
        assert list(found.streams) == ["foo"]
        assert (found.streams["foo"].subject, found.streams["foo"].created_ns) == ("bar", 77)
        assert list(found.streams["foo"].partitions) == [0, 1, 2]
        assert [p.leader for p in found.streams["foo"].partitions.values()] == ["a", "b", "a"]
        assert dict(found.groups) == {"g": GroupInfo("g", "a", 9)}
        assert timedelta(0) <= datetime.now(UTC) - found.last_updated < timedelta(minutes=1)

    def test_nothing(self) -> None:
        found = read_metadata(api_pb2.FetchMetadataResponse())
        assert (dict(found.brokers), dict(found.streams), dict(found.groups)) == ({}, {}, {})
        assert (found.addresses, found.missing_brokers()) == ((), set())

    def test_a_partition(self) -> None:
        found = api_pb2.PartitionMetadata(
            id=3,
            leader="a",
            replicas=["a", "b"],
            isr=["b"],
            highWatermark=5,
            newestOffset=7,
            paused=True,
            readonly=True,
        )
        found.messagesReceivedTimestamps.firstTimestamp, found.messagesReceivedTimestamps.latestTimestamp = (
            1,
            2,
        )
        found.pauseTimestamps.latestTimestamp = 3
        found.readonlyTimestamps.firstTimestamp = 4
        assert partition_info(found) == PartitionInfo(
            3, "a", ("a", "b"), ("b",), 5, 7, True, True, EventTimes(1, 2), EventTimes(0, 3), EventTimes(4, 0)
        )


class TestUse:
    def test_streams(self) -> None:
        found = read_metadata(answer())
        assert found.partition_count("foo") == 3
        assert found.get_stream("foo") is found.streams["foo"]
        assert found.get_stream("gone") is None
        for name in ("gone", "never"):
            with pytest.raises(NoSuchStreamError, match=name):
                found.partition_count(name)

    def test_does_not_change(self) -> None:
        found = read_metadata(answer())
        with pytest.raises(TypeError):
            found.streams["foo"] = StreamInfo("foo")  # type: ignore[index]
        with pytest.raises(TypeError):
            found.streams["foo"].partitions[0] = PartitionInfo(0)  # type: ignore[index]
        with pytest.raises(dataclasses.FrozenInstanceError):
            found.brokers["a"].port = 5  # type: ignore[misc]

    def test_does_not_change_with_what_it_was_made_of(self) -> None:
        partitions = {0: PartitionInfo(0)}
        stream = StreamInfo("foo", partitions=partitions)
        partitions[1] = PartitionInfo(1)
        assert list(stream.partitions) == [0]

    @pytest.mark.parametrize(
        "way", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
    )
    def test_copied_and_pickled(self, way: Callable[[Any], Any]) -> None:
        found = read_metadata(answer())
        assert way(found) == found
        with pytest.raises(TypeError):
            way(found).streams["foo"].partitions[0] = PartitionInfo(0)

    def test_brokers_that_are_named_and_not_known(self) -> None:
        partitions = {0: PartitionInfo(0, "a"), 1: PartitionInfo(1, "x"), 2: PartitionInfo(2, "")}
        found = make_metadata(
            [BrokerInfo("a", "h", 1)], [StreamInfo("foo", "foo", partitions)], [GroupInfo("g", "y", 1)]
        )
        assert found.missing_brokers() == {"x", "y"}


class TestMerged:
    def one(self, broker: str, *streams: StreamInfo) -> Metadata:
        return make_metadata([BrokerInfo(broker, "h", 1)], streams, [GroupInfo(broker, broker, 1)])

    def test_has_what_either_says(self) -> None:
        found = merged(self.one("a", StreamInfo("x")), self.one("b", StreamInfo("y")))
        assert (set(found.brokers), set(found.streams), set(found.groups)) == (
            {"a", "b"},
            {"x", "y"},
            {"a", "b"},
        )

    def test_believes_the_later_one(self) -> None:
        found = merged(self.one("a", StreamInfo("x", "old")), self.one("a", StreamInfo("x", "new")))
        assert (found.streams["x"].subject, len(found.brokers)) == ("new", 1)


def test_creation_time_is_that_of_a_stream_in_the_answer() -> None:
    data = answer().SerializeToString()
    assert creation_time(data, "foo") == 77
    assert creation_time(data, "gone") is creation_time(data, "other") is None
    with pytest.raises(ServerProtocolError):
        creation_time(b"\xff" + data, "foo")
