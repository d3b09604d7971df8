"""Filtered reads on real servers, beside full reads that are filtered afterwards, and beside nats.go."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

import nats
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks import processor_time
from benchmarks.bulk_streams import make_stream
from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope import bulk
from liftenvelope.testing import NatsServer

SIZE = 100
#: Subjects of the stream: each gets as many messages.
SUBJECTS = 100

_BY_SEARCH: Final = (
    "The server is the limit: it compares each message of the stream with the filters, which takes part of "
    "the time of reading it."
)
_BY_START: Final = (
    "A read connects, counts the messages on each subject and makes its consumer within its time; the other "
    "begins with all of that done."
)
# Measured in the threads of the read, 25 rounds of each in turn: their ratio was 0.996.
_BY_MASK: Final = (
    "A read asks the server for the subjects that match, in 0.3 ms, and compares the 100 subjects of each "
    "batch of 65,536 rows with the filter, in 0.3 ms: 3 % of its processor time. Single rounds vary by more."
)


def _filled(url: str, count: int) -> str:
    stream = make_stream(url, below=True)
    subjects = [f"{stream}.{at % SUBJECTS}" for at in range(count)]
    bulk.write(url, stream, pa.table({"value": pa.array([b"x" * SIZE] * count), "subject": subjects}))
    return stream


def _filtered(url: str, stream: str, wanted: list[str], matching: int) -> Round:
    def run() -> float:
        began = perf_counter()
        assert sum(batch.num_rows for batch in bulk.read(url, stream, subjects=wanted)) == matching
        return (perf_counter() - began) / matching

    return run


def _filtered_afterwards(url: str, stream: str, wanted: list[str], matching: int) -> Round:
    words = pa.array(wanted)

    def run() -> float:
        began = perf_counter()
        table = bulk.read(url, stream).read_all()
        kept = table.filter(pc.is_in(table["subject"].cast(pa.string()), value_set=words))
        assert kept.num_rows == matching
        return (perf_counter() - began) / matching

    return run


def _by_nats_go(
    go: GoPeers, report: Report, url: str, stream: str, wanted: list[str], matching: int
) -> Round:
    async def consumer() -> str:
        async with await nats.connect(url) as nc:
            config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60, filter_subjects=wanted)
            return (await nc.jetstream().add_consumer(stream, config)).name

    def run() -> float:
        name = asyncio.run(consumer())
        found = go.run("jetconsume", url=url, stream=stream, consumer=name, n=matching, size=SIZE)
        assert (found["read"], found["wrong"]) == (matching, 0)
        report.versions["nats.go"] = found["client"]
        return 1 / float(found["messages_per_s"])

    return run


@pytest.mark.parametrize("share", [1, 10, 50])
def test_read_some_subjects(
    compare: Comparison, jetstream: NatsServer, go: GoPeers, report: Report, share: int
) -> None:
    """Of a million messages: of 100,000, one of 100 subjects is read in the time that it takes to begin."""
    count, url = compare.amount(1_000_000, 1_000), jetstream.url
    stream = _filled(url, count)
    wanted = [f"{stream}.{at}" for at in range(share * SUBJECTS // 100)]
    matching = count * share // 100
    compare(
        f"bulk.read(subjects=), {share} of {SUBJECTS} subjects, {SIZE} B",
        _filtered(url, stream, wanted, matching),
        Peer("bulk.read, then pyarrow", _filtered_afterwards(url, stream, wanted, matching), 0.9, _BY_SEARCH),
        Peer(
            "nats.go, filtered consumer",
            _by_nats_go(go, report, url, stream, wanted, matching),
            1,
            _BY_START,
        ),
        rate=True,
        rounds=3,
    )


def test_full_read_with_a_filter_for_everything(compare: Comparison, jetstream: NatsServer) -> None:
    """What the reader's own filter costs. The time of a read is that of the server, which varies by half."""
    count, url = compare.amount(500_000, 1_000), jetstream.url
    stream = _filled(url, count)

    def reading(subjects: list[str] | None) -> Round:
        def run() -> float:
            began = processor_time.own()
            assert sum(batch.num_rows for batch in bulk.read(url, stream, subjects=subjects)) == count
            return (processor_time.own() - began) / count

        return run

    compare(
        f"bulk.read(subjects=), all of {SUBJECTS} subjects, {SIZE} B, processor time",
        reading([f"{stream}.*"]),
        Peer("bulk.read", reading(None), 0.9, _BY_MASK),
        rate=True,
    )
