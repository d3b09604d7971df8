"""Rates, series, alerts and the collector, without servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from liftenvelope.errors import TransportError
from liftenvelope.monitor import (
    Collector,
    ConsumerSample,
    GroupPartition,
    GroupSample,
    History,
    MonitorLimits,
    PartitionSample,
    Series,
    Snapshot,
    StorageSample,
    StreamSample,
    alerts,
)
from liftenvelope.monitor._views import View


def snapshot(at: float, **ends: int) -> Snapshot:
    streams = {
        name: StreamSample(name=name, partitions=[PartitionSample(number=0, at=at, end=end)])
        for name, end in ends.items()
    }
    return Snapshot(at=at, kind="jetstream", streams=streams)


class TestSeries:
    def test_keeps_the_newest_points_within_the_limit(self) -> None:
        series = Series(10)
        for second in range(100):
            series.add(float(second), float(second))
        assert [value for _, value in series.points()] == [float(one) for one in range(90, 100)]
        assert len(series) <= 12

    def test_ignores_a_point_that_is_not_newer(self) -> None:
        series = Series(10)
        series.add(2.0, 1.0)
        series.add(2.0, 5.0)
        series.add(1.0, 5.0)
        assert series.points() == [(2.0, 1.0)]

    def test_rate_is_taken_over_the_last_seconds(self) -> None:
        series = Series(100)
        for second, value in enumerate((0, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000)):
            series.add(float(second), float(value))
        assert series.rate() == 0.0
        assert series.rate(7.0) == pytest.approx(1_000 / 7)

    def test_series_that_fell_has_no_rate(self) -> None:
        series = Series(10)
        series.add(1.0, 100.0)
        series.add(2.0, 5.0)
        assert series.rate() is None
        assert list(series.rates()) == [(2.0, 0.0)]

    def test_points_after_a_time(self) -> None:
        series = Series(10)
        for second in range(4):
            series.add(float(second), float(second))
        assert series.points(since=1.0) == [(2.0, 2.0), (3.0, 3.0)]
        assert list(series.rates(since=2.0)) == [(3.0, 1.0)]


class TestHistory:
    def test_series_of_a_deleted_stream_is_dropped(self) -> None:
        history = History()
        history.add(snapshot(1.0, orders=5, audit=1))
        history.add(snapshot(2.0, orders=9))
        assert history.series("stream", "audit").points() == []
        assert history.rate("stream", "orders") == 4.0

    def test_total_does_not_fall_when_a_stream_is_deleted(self) -> None:
        history = History()
        history.add(snapshot(1.0, orders=5, audit=1_000))
        history.add(snapshot(2.0, orders=9))
        history.add(snapshot(3.0, orders=10))
        assert [value for _, value in history.series("total").points()] == [0.0, 4.0, 5.0]

    def test_number_of_series_is_limited(self) -> None:
        history = History(MonitorLimits(max_series=3))
        history.add(snapshot(1.0, **{f"s{number}": number for number in range(10)}))
        kept = [name for name in (f"s{n}" for n in range(10)) if len(history.series("stream", name))]
        assert kept == ["s0", "s1"]  # and the total

    def test_value_that_was_not_read_again_adds_no_point(self) -> None:
        history = History()
        first = snapshot(1.0, orders=5)
        history.add(first)
        history.add(Snapshot(at=2.0, kind="jetstream", streams=first.streams))
        assert history.series("stream", "orders").points() == [(1.0, 5.0)]

    def test_lag_of_partitions_of_a_group(self) -> None:
        history = History()
        rows = [GroupPartition(topic="t", partition=0, lag=3), GroupPartition(topic="t", partition=1)]
        group = GroupSample(name="g", at=1.0, state="stable", partitions=rows)
        history.add(Snapshot(at=1.0, kind="jetstream", groups={"g": group}))
        assert history.series("group", "g").last == 3.0
        assert history.series("member", "g", "t", 0).last == 3.0


class TestView:
    @pytest.mark.parametrize(
        ("partitions", "keys"),
        [
            (1, [["stream", "orders"]]),
            (16, [["partition", "orders", number] for number in range(16)]),
            (17, [["stream", "orders"]]),
        ],
    )
    def test_rate_of_a_stream_is_plotted_whole_if_it_has_many_partitions(
        self, partitions: int, keys: list[object]
    ) -> None:
        history = History()
        for second in (1.0, 2.0):
            parts = [
                PartitionSample(number=number, at=second, end=round(second)) for number in range(partitions)
            ]
            streams = {"orders": StreamSample(name="orders", partitions=parts)}
            history.add(Snapshot(at=second, kind="liftbridge", streams=streams))
        series = View("stream", ["orders"]).update(history)["series"]
        assert isinstance(series, list)
        assert [line["key"] for line in series] == keys
        assert sum(line["values"][-1] for line in series) == partitions


class TestAlerts:
    def test_nothing_to_report(self) -> None:
        assert alerts(snapshot(1.0, orders=5)) == []

    def test_partition_without_leader_unless_paused(self) -> None:
        parts = [
            PartitionSample(number=0, at=1.0, leader="a", replicas=3, in_sync=2),
            PartitionSample(number=1, at=1.0, leader=""),
            PartitionSample(number=2, at=1.0, leader="", paused=True),
        ]
        stream = StreamSample(name="orders", partitions=parts)
        found = alerts(Snapshot(at=1.0, kind="liftbridge", streams={"orders": stream}))
        assert [(one.severity, one.text) for one in found] == [
            ("error", "partition 1 has no leader"),
            ("warning", "partition 0 has 2 of 3 replicas in sync"),
        ]

    def test_readers_storage_and_brokers(self) -> None:
        rows = [GroupPartition(topic="t", partition=0, lag=1_234)]
        found = alerts(
            Snapshot(
                at=1.0,
                kind="jetstream",
                consumers={
                    ("s", "c"): ConsumerSample(stream="s", name="c", at=1.0, ack_pending=2, paused=True)
                },
                groups={"g": GroupSample(name="g", at=1.0, state="empty", partitions=rows)},
                storage=StorageSample(disk=95, max_disk=100),
                brokers={"one:9292": "not_serving", "two:9292": "serving"},
                missing=["audit"],
                left_out={"streams": 7, "groups": 0, "partitions of groups": 1_200},
            )
        )
        assert [(one.kind, one.name, one.text) for one in found] == [
            ("stream", "audit", "no server answers for the stream: it has no leader"),
            ("broker", "one:9292", "broker is not serving"),
            ("sample", "streams", "streams beyond the limit are not shown: 7"),
            (
                "sample",
                "partitions of groups",
                "partitions of groups beyond the limit are not shown: 1,200",
            ),
            ("storage", "disk", "95% of the account's disk is used"),
            ("group", "g", "group without members has a lag of 1,234"),
            ("consumer", "s/c", "consumer is paused with a lag of 2"),
        ]


class Scripted:
    """Sampler that returns or raises what it is given, and then waits."""

    def __init__(self, *steps: Snapshot | TransportError) -> None:
        self.steps = list(steps)
        self.focus: list[Sequence[str]] = []

    async def sample(self, focus: Sequence[str] = ()) -> Snapshot:
        self.focus.append(focus)
        if not self.steps:
            await asyncio.Event().wait()
        step = self.steps.pop(0)
        if isinstance(step, TransportError):
            raise step
        return step


class TestCollector:
    async def test_failed_sample_repeats_the_last_one_with_its_fault(self) -> None:
        failure = TransportError("lost nats://user:secret@host:4222")
        sampler = Scripted(snapshot(1.0, orders=5), failure)

        @asynccontextmanager
        async def connect() -> AsyncIterator[Scripted]:
            yield sampler

        collector = Collector(connect, kind="jetstream", interval=0.001)
        task = asyncio.create_task(collector.run())
        async with asyncio.timeout(60):
            while await collector.next(collector.version) < 2:
                pass
        task.cancel()
        latest = collector.history.latest
        assert latest is not None
        assert latest.streams["orders"].end == 5
        assert [one.text for one in alerts(latest)] == [
            "sampling of connection failed: lost nats://host:4222"
        ]

    async def test_connects_again_after_failures_and_after_a_refused_connection(self) -> None:
        lost = TransportError("lost")
        samplers = [Scripted(lost, lost, lost), None, Scripted(snapshot(9.0, orders=1))]

        @asynccontextmanager
        async def connect() -> AsyncIterator[Scripted]:
            sampler = samplers.pop(0)
            if sampler is None:
                raise TransportError("refused")
            yield sampler

        collector = Collector(connect, kind="jetstream", interval=0.001)
        task = asyncio.create_task(collector.run())
        async with asyncio.timeout(60):
            while collector.history.latest is None or not collector.history.latest.streams:
                await collector.next(collector.version)
        task.cancel()
        assert samplers == []

    async def test_slow_reader_gets_the_newest_version_at_once(self) -> None:
        sampler = Scripted(*(snapshot(float(n), orders=n) for n in range(1, 6)))

        @asynccontextmanager
        async def connect() -> AsyncIterator[Scripted]:
            yield sampler

        collector = Collector(connect, kind="jetstream", interval=0.001)
        with collector.focus("orders", "audit"), collector.focus("orders"):
            task = asyncio.create_task(collector.run())
            async with asyncio.timeout(60):
                while await collector.next(collector.version) < 5:
                    pass
        assert await collector.next(1) == 5
        task.cancel()
        assert sorted(sampler.focus[0]) == ["audit", "orders"]
