"""The command ``opentelemetry-instrument``, and telemetry over the real protocol, OTLP."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from liftenvelope.testing import NatsServer

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio, sys
import nats
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig

async def main(url, name):
    done = asyncio.Event()
    async def handle(message):
        await message.ack_sync()
        done.set()
    nc = await nats.connect(url)
    async with JetStream(nc) as js:
        stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="packing"))
        await js.publish(name, b"two apples")
        async with await consumer.consume(handle):
            await done.wait()
    await nc.close()

asyncio.run(main(*sys.argv[1:]))
"""


class Traces(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps the names of the metrics that it gets."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.names |= {metric.name for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()


class Collector:
    """A collector: receives over gRPC, and keeps everything."""

    def __init__(self) -> None:
        self.traces, self.metrics = Traces(), Metrics()
        self._server = grpc.server(ThreadPoolExecutor(2))
        traces: Any = trace_service_pb2_grpc
        metrics: Any = metrics_service_pb2_grpc
        traces.add_TraceServiceServicer_to_server(self.traces, self._server)
        metrics.add_MetricsServiceServicer_to_server(self.metrics, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.stop()


@pytest.fixture
def entry_points(tmp_path: Path) -> Path:
    """A folder with the entry points of pyproject.toml: those that are installed may be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = ["[opentelemetry_instrumentor]"]
    found = project["entry-points"]["opentelemetry_instrumentor"]
    lines += [f"{name} = {value}" for name, value in found.items()]
    folder = tmp_path / "liftenvelope_entry-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: liftenvelope-entry\nVersion: 1\n", "utf-8")
    (folder / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return tmp_path


def test_program_that_knows_nothing_of_telemetry_is_traced_by_the_command(
    jetstream_server: NatsServer, collector: Collector, entry_points: Path, name: str
) -> None:
    path = os.pathsep.join([str(entry_points), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
        "PYTHONPATH": path,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }
    command = [str(Path(sys.executable).parent / "opentelemetry-instrument")]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, jetstream_server.url, name],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    spans = {span.name: span for span in collector.traces.spans}
    assert set(spans) == {f"publish {name}", f"process {name}"}, done.stderr
    published, processed = spans[f"publish {name}"], spans[f"process {name}"]
    assert processed.trace_id == published.trace_id
    assert processed.parent_span_id == published.span_id
    assert collector.metrics.names == {
        "liftenvelope.client.reconnects",
        "liftenvelope.consumer.lag",
        "liftenvelope.publish.outstanding",
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.process.duration",
    }
