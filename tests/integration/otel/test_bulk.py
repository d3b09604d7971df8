"""Spans of reads and writes in bulk, on a real server."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from liftenvelope import bulk, otel
from liftenvelope.bulk.observing import observation
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import with_jetstream
from tests.integration.conftest import wait_until

from .recording import Recording


@pytest.fixture
def recording() -> Iterator[Recording]:
    with Recording(bulk=True, max_links=3) as found:
        yield found
    assert observation.observer is None


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
    assert [link.context.trace_id for link in read.links] == [1, 2, 3]
    assert recording.total("messaging.client.sent.messages") == 10
    assert recording.total("messaging.client.consumed.messages") == 10


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
    assert bulk.read(address, name, columns=["offset"]).read_all().num_rows == 1
    assert [span.name for span in recording.spans()] == [f"write {name}", f"read {name}"]


def test_bulk_is_not_recorded_by_default(jetstream_server: NatsServer, stream: str) -> None:
    otel.uninstrument()
    with Recording() as recording:
        bulk.write(jetstream_server.url, stream, rows(1, stream))
        assert recording.spans() == []
