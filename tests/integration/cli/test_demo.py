"""``python -m liftenvelope demo`` from end to end, on servers of its own and on running ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.cli import _demo_job
from liftenvelope.cli._demo_job import Job, run_demo
from liftenvelope.errors import TransportError
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.testing import LiftbridgeCluster, NatsServer, run_gateway

#: A port that nothing listens on.
NOWHERE = "127.0.0.1:1"


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "liftenvelope", "demo", *arguments],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(output: str) -> dict[str, str]:
    """The rows of the first table."""
    return {
        key.strip(): value.strip() for key, value in re.findall(r"│([^│]+)│([^│]+)│$", output, re.MULTILINE)
    }


def assert_all_is_well(done: subprocess.CompletedProcess[str], messages: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    table = rows(done.stdout)
    assert table["acked messages"] == f"{messages} of {messages}"
    assert table["lost"] == "0"
    assert table["offsets contiguous"] == table["read back identical"] == "yes"
    assert re.fullmatch(r"[\d,]+ acked/s", table["throughput"])
    latencies = [float(table[f"ack latency, {name}"].removesuffix(" ms")) for name in ("p50", "p99", "max")]
    assert 0 < latencies[0] <= latencies[1] <= latencies[2]
    for operation in ("encode a message", "decode a message", "decode an ack"):
        assert re.search(rf"│ {operation} +│ +\d+ +│ +\d+ +│ +[\d.]+x +│", done.stdout)
    assert "Traceback" not in done.stderr


def assert_failed(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """It exits with 1 and one sentence."""
    assert done.returncode == 1, done.stdout + done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    for word in words:
        assert word in error
    assert "Traceback" not in done.stderr


def demo_streams(cluster: LiftbridgeCluster) -> set[str]:
    """Return the streams of demos: the others are those of other tests and of the server."""
    with BlockingChannel(cluster.addresses[0]) as channel:
        channel.connect()
        answer = channel.unary("/proto.API/FetchMetadata", b"", timeout=10)
    found = api_pb2.FetchMetadataResponse.FromString(answer).streamMetadata
    return {metadata.name for metadata in found if metadata.name.startswith("liftenvelope-demo-")}


@pytest.mark.parametrize("options", [[], ["--broker", "liftbridge"]])
def test_on_servers_of_its_own(options: list[str]) -> None:
    assert_all_is_well(demo("--messages", "7000", *options), "7,000")


@pytest.mark.parametrize("options", [[], ["--window", "1", "--size", "16"], ["--size", "100000"]])
def test_on_running_servers(liftbridge_server: LiftbridgeCluster, options: list[str]) -> None:
    before = demo_streams(liftbridge_server)
    servers = ["--url", liftbridge_server.nats_url, "--liftbridge", liftbridge_server.addresses[0]]
    assert_all_is_well(demo("--messages", "300", *servers, *options), "300")
    assert demo_streams(liftbridge_server) == before  # it cleans up


def test_no_nats_server(liftbridge_server: LiftbridgeCluster) -> None:
    began = time.monotonic()
    url = f"nats://{NOWHERE}"
    assert_failed(demo("--url", url, "--liftbridge", liftbridge_server.addresses[0]), "no NATS server", url)
    assert time.monotonic() - began < 60


def test_no_liftbridge_server(nats_server: NatsServer) -> None:
    began = time.monotonic()
    assert_failed(demo("--url", nats_server.url, "--liftbridge", NOWHERE), "no Liftbridge server", NOWHERE)
    assert time.monotonic() - began < 60


def test_two_servers_that_do_not_belong_together(
    nats_server: NatsServer, liftbridge_server: LiftbridgeCluster
) -> None:
    began = time.monotonic()
    address = liftbridge_server.addresses[0]
    before = demo_streams(liftbridge_server)
    assert_failed(demo("--url", nats_server.url, "--liftbridge", address), "no ack", nats_server.url, address)
    assert time.monotonic() - began < 60
    assert demo_streams(liftbridge_server) == before


@pytest.mark.parametrize(
    ("killed", "patience", "text"),
    [
        ("broker", 2.0, "no ack for 5,000 messages within 2 s"),
        # Whichever notices first: a publish, or the wait for acks.
        ("nats", 240.0, "the NATS connection (is closed|was given up)"),
    ],
)
async def test_server_that_goes_halfway(
    monkeypatch: pytest.MonkeyPatch, killed: str, patience: float, text: str
) -> None:
    monkeypatch.setattr(_demo_job, "_ACK_TIMEOUT", patience)
    with run_gateway() as gateway:
        assert gateway.nats is not None
        kill = gateway.kill if killed == "broker" else gateway.nats.kill
        job = Job(messages=10_000_000, size=16, nats_url=gateway.nats_url, liftbridge=gateway.addresses[0])

        def end(_: int) -> None:
            kill()

        with pytest.raises(TransportError, match=text):
            await run_demo(job, on_ack=end)


def test_messages_that_nats_does_not_take() -> None:
    assert_failed(demo("--messages", "10", "--size", "2000000"), "2000", "1048576")


@pytest.mark.parametrize("variable", ["LIFTENVELOPE_NATS_SERVER", "LIFTENVELOPE_LIFTBRIDGE"])
def test_a_server_program_that_is_not_there(variable: str) -> None:
    done = demo("--messages", "10", "--broker", "liftbridge", **{variable: "no/such/file"})
    assert_failed(done, variable, "must name an existing file")


def test_json_report() -> None:
    done = demo("--messages", "100", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["published"], report["lost"], report["ok"]) == (100, 0, True)
    assert {one["operation"] for one in report["codec"]} >= {"encode a message", "decode a message"}
