"""Spans of reads and writes in bulk, on a real server."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation

from liftenvelope import bulk, otel
from liftenvelope.bulk.observing import observation
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.spark._broker import read_span
from liftenvelope.spark._options import sink_options, source_options
from liftenvelope.spark._planning import Span
from liftenvelope.spark._writing import write_task
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import make_stream, with_jetstream
from tests.integration.conftest import wait_until

from .recording import Recording


@pytest.fixture
def recording() -> Iterator[Recording]:
    with Recording(bulk=True, max_links=3) as found:
        yield found
    assert observation.observer is None
    assert observation.row_observer is None


@pytest.fixture
def stream(jetstream_server: NatsServer, name: str) -> str:
    with_jetstream(jetstream_server.url, lambda js: js.add_stream(name=name, subjects=[name]))
    return name


def rows(count: int, name: str) -> pa.Table:
    parents = [f"00-{number + 1:032x}-{number + 1:016x}-01".encode() for number in range(count)]
    headers = pa.array([[("traceparent", one)] for one in parents], pa.map_(pa.string(), pa.binary()))
    return pa.table({"value": [b"x"] * count, "subject": [name] * count, "headers": headers})


def test_write_and_read_have_one_span_each(
    jetstream_server: NatsServer, recording: Recording, stream: str
) -> None:
    assert bulk.write(jetstream_server.url, stream, rows(10, stream)).acked == 10
    table = bulk.read(jetstream_server.url, stream, batch_rows=4).read_all()
    assert table.num_rows == 10
    written, read = recording.one("write"), recording.one("read")
    for span, kind in ((written, "send"), (read, "receive")):
        found = span.attributes or {}
        assert found["messaging.batch.message_count"] == 10
        assert found["messaging.operation.type"] == kind
        assert found["messaging.system"] == "nats"
        assert found["messaging.destination.name"] == stream
        assert [link.context.trace_id for link in span.links] == [1, 2, 3]
    assert recording.total("messaging.client.sent.messages") == 10
    assert recording.total("messaging.client.consumed.messages") == 10


@pytest.mark.parametrize("envelope", [False, True])
def test_rows_carry_the_context_of_their_write(
    jetstream_server: NatsServer, recording: Recording, stream: str, envelope: bool
) -> None:
    own = rows(1, stream).to_pylist()[0]
    table = pa.Table.from_pylist(
        [own, {**own, "headers": [("a", b"b")]}, {**own, "headers": None}], rows(1, "").schema
    )
    with recording.tracer.start_as_current_span("job") as job:
        bulk.write(jetstream_server.url, stream, table, envelope=envelope)
    written = recording.one("write")
    assert written.parent == job.get_span_context()
    parent = f"00-{written.context.trace_id:032x}-{written.context.span_id:016x}-".encode()
    read = bulk.read(jetstream_server.url, stream, envelope="strip" if envelope else "none").read_all()
    found = [dict(row) for row in read["headers"].to_pylist()]
    assert found[0]["traceparent"] == own["headers"][0][1]
    assert all(row["traceparent"].startswith(parent) for row in found[1:])
    assert found[1]["a"] == b"b"
    traces = pc.map_lookup(read["headers"], "traceparent", "first")  # a column, to find the trace of a row
    assert traces.to_pylist() == [row["traceparent"] for row in found]


def test_row_of_the_largest_size_is_still_stored(
    jetstream_server: NatsServer, recording: Recording, stream: str
) -> None:
    value = b"x" * (1 << 20)
    table = pa.table({"value": [value, b"small"], "subject": [stream] * 2})
    assert bulk.write(jetstream_server.url, stream, table).acked == 2
    found = bulk.read(jetstream_server.url, stream).read_all()["headers"].to_pylist()
    assert [bool(row) for row in found] == [False, True]


def test_rows_of_a_suppressed_write_stay_as_they_are(
    jetstream_server: NatsServer, recording: Recording, stream: str
) -> None:
    with suppress_instrumentation():
        bulk.write(jetstream_server.url, stream, rows(1, stream).drop_columns(["headers"]))
    assert bulk.read(jetstream_server.url, stream).read_all()["headers"].to_pylist() in ([[]], [None])
    assert recording.spans("write") == []


def test_failed_calls_end_their_spans(jetstream_server: NatsServer, recording: Recording, name: str) -> None:
    with pytest.raises(StreamNotFoundError):
        bulk.write(jetstream_server.url, name, rows(1, name))
    with pytest.raises(StreamNotFoundError):
        bulk.read(source=jetstream_server.url, stream=name)
    types = [(span.attributes or {})["error.type"] for span in recording.spans()]
    assert types == ["StreamNotFoundError"] * 2
    assert recording.open == 0


def test_dropped_reader_ends_its_span_and_its_threads(
    jetstream_server: NatsServer, recording: Recording, stream: str
) -> None:
    bulk.write(jetstream_server.url, stream, rows(100, stream))
    before = threading.active_count()
    reader = bulk.read(jetstream_server.url, stream, batch_rows=1)
    assert reader.read_next_batch().num_rows == 1
    assert recording.open == 1
    del reader
    gc.collect()
    wait_until(lambda: recording.open == 0 and threading.active_count() <= before)
    assert recording.one("read").status.is_unset


def test_liftbridge_is_recorded(
    liftbridge_server: LiftbridgeCluster, recording: Recording, name: str
) -> None:
    liftbridge_server.create_stream(name)
    address = liftbridge_server.addresses[0]
    bulk.write(address, name, pa.table({"value": [b"x"]}))
    table = bulk.read(address, name).read_all()
    assert dict(table["headers"].to_pylist()[0])["traceparent"]
    assert [span.name for span in recording.spans()] == [f"write {name}", f"read {name}"]


def test_bulk_is_not_recorded_by_default(jetstream_server: NatsServer, stream: str) -> None:
    otel.uninstrument()
    with Recording() as recording:
        bulk.write(jetstream_server.url, stream, rows(1, stream))
        assert recording.spans() == []


def test_task_of_spark_has_one_span(jetstream_server: NatsServer, recording: Recording, name: str) -> None:
    for stream in (f"{name}-a", f"{name}-b"):
        make_stream(jetstream_server.url, stream)
    table = rows(6, "").drop_columns(["subject"])
    topics = pa.array([f"{name}-{topic}" for topic in "ababab"])
    subjects = pa.array([f"{name}-{topic}.x" for topic in "ababab"])
    batch = table.append_column("topic", topics).append_column("subject", subjects).to_batches()[0]
    given = {"servers": jetstream_server.url, "includeHeaders": True}
    sink = sink_options("jetstream", given, streaming=False)
    assert write_task(sink, [batch], None).rows == 6
    written = recording.one("write")
    assert (written.attributes or {})["messaging.batch.message_count"] == 6
    assert len(written.links) == 3

    source = source_options("jetstream", {**given, "subscribe": f"{name}-a"}, streaming=False)
    assert sum(found.num_rows for found in read_span(source, Span(f"{name}-a", 0, 0, 3))) == 3
    read = recording.one("read")
    assert (read.attributes or {})["messaging.batch.message_count"] == 3
    assert len(read.links) == 3


def test_exactly_once_writes_of_spark_keep_their_rows(
    liftbridge_server: LiftbridgeCluster, recording: Recording, name: str
) -> None:
    liftbridge_server.create_stream(name, optimistic_concurrency=True)
    given = {"servers": liftbridge_server.addresses[0], "topic": name, "includeHeaders": True}
    sink = sink_options("liftbridge", given, streaming=True)
    batch = pa.record_batch({"value": ["1", "2"]})
    for attempt in range(2):
        assert write_task(sink, [batch], "query:0:1").duplicates == 2 * attempt
    assert len(recording.spans("write")) == 2
