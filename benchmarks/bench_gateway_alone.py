"""Cost of a gateway by itself: to start and restart, to be idle, and to read a stream to its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

import liftenvelope
from benchmarks import processor_time
from benchmarks.report import Bound, Report
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.testing import GatewayCluster, run_gateway
from liftenvelope.testing._ports import free_port

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
#: As `liftenvelope serve` has them; those of `run_gateway` are short, and shorter pauses take more turns.
SERVED = {"consumer_timeout": 15.0, "coordinator_timeout": 15.0}
VALUE = b"x" * 256
STREAMS_AT_ONCE = 16
RESTART_LIMIT = (
    "nats-server takes some 60 % of the processor time until the last ack, most of it to create a consumer "
    "for each stream: three times as long as one in memory, but the ack floor must outlive the server. To "
    "list the consumers takes it a tenth of that. The gateway takes some 40 %, on one core."
)


@pytest.fixture(scope="module")
def quick(pytestconfig: pytest.Config) -> bool:
    """True in a small run, which only shows that everything works."""
    return not pytestconfig.getoption("benchmark_enable")


def _memory(pid: int | None, what: str) -> float:
    """In MiB: VmRSS, or VmHWM for the most that there was."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


async def _make(address: str, streams: int) -> float:
    """Create streams; return the seconds for one."""
    limit = asyncio.Semaphore(STREAMS_AT_ONCE)
    async with liftenvelope.connect(address) as client:

        async def make(name: str) -> None:
            async with limit:
                await client.create_stream(name, name)

        began = perf_counter()
        await asyncio.gather(*(make(f"idle-{number}") for number in range(streams)))
        return (perf_counter() - began) / streams


def test_idle(quick: bool, report: Report, loop: asyncio.Runner) -> None:
    """With 1,000 streams: how much of a processor it takes, and memory; of its NATS server as well."""
    streams, seconds = (20, 1) if quick else (1_000, 30)
    with run_gateway(config=SERVED) as cluster:
        one = loop.run(_make(cluster.addresses[0], streams))
        sleep(0 if quick else 20)  # what comes of making them is over then
        assert cluster.nats is not None
        pids = (cluster.nodes[0].pid, cluster.nats.pid)
        before = [processor_time.of_process(pid) for pid in pids]
        sleep(seconds)
        taken = [processor_time.of_process(pid) - then for pid, then in zip(pids, before, strict=True)]
        memory = [_memory(pid, "VmRSS") for pid in pids]
    if quick:
        return
    what = f"gateway: idle with {streams:,} streams, each made in {1_000 * one:.3g} ms"
    for part, used, mib in zip(("gateway", "nats-server below it"), taken, memory, strict=True):
        report.bounds.append(Bound(f"{what}: {part}, {mib:.0f} MiB", 100 * used / seconds, 1, "%"))


def _until_acked(folder: Path) -> float:
    """Seconds from the start of `liftenvelope serve`, nats-server included, to the first acked message."""
    command = [sys.executable, "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"]
    own = ["--data-dir", str(folder), "--nats-listen", f"127.0.0.1:{free_port()}"]
    began = perf_counter()
    with subprocess.Popen([*command, *own], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().partition(" on ")[2].partition(",")[0]
            asyncio.run(_publish_one(address))
            return perf_counter() - began
        finally:
            process.terminate()


async def _publish_one(address: str) -> None:
    async with liftenvelope.connect(address) as client:
        await client.create_stream("first", "first")
        ack: Any = await client.publish("first", VALUE)
        assert ack.offset == 0


def test_start(quick: bool, report: Report, tmp_path: Path) -> None:
    taken = [_until_acked(tmp_path / str(number)) for number in range(1 if quick else 5)]
    if not quick:
        what = "gateway: from `liftenvelope serve` to the first acked message"
        report.bounds.append(Bound(what, median(taken), 2, "s"))


async def _until_all_acked(cluster: GatewayCluster, streams: int) -> float:
    """Kill the gateway, publish an envelope to each stream, start it; return the seconds to the last ack."""
    node, nc = cluster.nodes[0], await nats.connect(cluster.nats_url)
    inbox, acked, all_acked = nc.new_inbox(), set[str](), asyncio.Event()

    async def note(msg: Msg) -> None:
        acked.add(unmarshal_ack(msg.data).correlation_id)
        if len(acked) == streams:
            all_acked.set()

    await nc.subscribe(inbox, cb=note)
    await asyncio.to_thread(node.kill)
    for number in range(streams):
        name = f"idle-{number}"
        await nc.publish(name, new_message(VALUE, ack_inbox=inbox, correlation_id=name))
    for _ in range(2):  # nats-py's first PING overtakes what is buffered
        await nc.flush(timeout=60)
    began = perf_counter()
    await asyncio.to_thread(node.start)
    async with asyncio.timeout(300):
        await all_acked.wait()
    taken = perf_counter() - began
    await nc.close()
    return taken


def test_restart(quick: bool, report: Report, loop: asyncio.Runner) -> None:
    streams = 20 if quick else 4_000
    with run_gateway(config=SERVED) as cluster:
        loop.run(_make(cluster.addresses[0], streams))
        taken = loop.run(_until_all_acked(cluster, streams))
        cluster.nodes[0].kill()  # a clean stop asks for the state of each stream
    if not quick:
        what = f"gateway: {streams:,} streams, restart to last ack"
        report.bounds.append(Bound(what, taken, 5, "s", RESTART_LIMIT))


async def _read(address: str, name: str, count: int) -> None:
    async with (
        liftenvelope.connect(address) as client,
        client.subscribe(name, start="earliest", stop=count - 1) as messages,
    ):
        read = 0
        async for batch in messages.batches(5_000, max_wait=1):
            read += len(batch)
        assert read == count


async def _fill(address: str, name: str, count: int) -> None:
    async with liftenvelope.connect(address) as client:
        await client.create_stream(name, name)
        await client.publish_many(name, (VALUE for _ in range(count)), max_in_flight=2_000)


def test_a_long_read(quick: bool, report: Report, loop: asyncio.Runner, gateway: GatewayCluster) -> None:
    """The memory that the gateway needs more for 1,000,000 messages than for 50,000."""
    count = 2_000 if quick else 1_000_000
    address, pid = gateway.addresses[0], gateway.nodes[0].pid
    loop.run(_fill(address, "long", count))
    loop.run(_read(address, "long", count // 20))
    before = _memory(pid, "VmHWM")
    loop.run(_read(address, "long", count))
    grown = _memory(pid, "VmHWM") - before
    if not quick:
        what = f"gateway: a bounded read of {count:,} messages, {before:.0f} MiB before: more at its most"
        report.bounds.append(Bound(what, grown, 16, "MiB"))
