"""Speed and memory of backups and restores: ``python -m benchmarks.backup_speed --gib 1``.

A stream with that much in messages of 1 KiB is backed up and restored by snapshots of the server, and
archived and restored by publishing. With ``--nats FILE``, the ``nats`` command does the same work on the same
server. Each job is a process of its own, whose peak of resident memory is printed. A figure of MB/s counts
the values of the messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nats
import pyarrow as pa

from benchmarks.archive_memory import ROOT, STREAM, VALUE, fill
from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server

_ACCESS: Final = bulk.Access(timeout=60.0)
_JOBS: Final[dict[str, Callable[[str, str], object]]] = {
    "backup": lambda url, folder: bulk.backup(url, STREAM, folder, access=_ACCESS),
    "restore_backup": lambda url, folder: bulk.restore_backup(folder, url, access=_ACCESS),
    "to_parquet": lambda url, folder: bulk.to_parquet(url, STREAM, folder, compression="none"),
    "restore": lambda url, folder: bulk.restore(folder, url, STREAM, access=_ACCESS),
}


def job(name: str, url: str, folder: str) -> dict[str, float]:
    """Do a job in this process; return what it took."""
    began = time.monotonic()
    _JOBS[name](url, folder)
    seconds = time.monotonic() - began
    return {"seconds": seconds, "processor": time.process_time(), "peak": _peak("self")}


def _peak(process: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    found = (int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return next(found, 0.0)  # none of a process that has just ended


def by_us(name: str, url: str, folder: Path) -> dict[str, float]:
    """Do a job in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.backup_speed", "--job", name, url, str(folder)]
    found: dict[str, float] = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    )
    return found


def by_nats(program: str, url: str, *arguments: str) -> dict[str, float]:
    """Run the ``nats`` command."""
    began, peak = time.monotonic(), 0.0
    command = [program, "-s", url, *arguments, "--no-progress"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            # The peak of wait4 begins with what this process had.
            peak = max(peak, _peak(str(running.pid)))
            time.sleep(0.02)
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0, arguments
    processor = usage.ru_utime + usage.ru_stime
    return {"seconds": time.monotonic() - began, "processor": processor, "peak": peak}


def on_jetstream(url: str, work: Callable[[JetStream], Any]) -> None:
    """Do something with JetStream."""

    async def run() -> None:
        async with await nats.connect(url) as nc:
            await work(JetStream(nc))

    asyncio.run(run())


def make(js: JetStream) -> Any:
    """Create the stream."""
    return js.create_stream(StreamConfig(name=STREAM, subjects=(STREAM,)))


def delete(js: JetStream) -> Any:
    """Delete the stream."""
    return js.delete_stream(STREAM)


def measured(mib: int, program: str | None, folder: Path) -> dict[str, dict[str, float]]:
    """Measure all jobs on one server; verify each restore by its number of messages."""
    count, found = mib * 2**20 // VALUE, {}
    with run_nats_server(jetstream=True) as server:
        url = server.url
        on_jetstream(url, make)
        fill(url, count)
        if program is not None:
            theirs = folder / "theirs"
            found["nats backup stream"] = by_nats(program, url, "backup", "stream", STREAM, str(theirs))
            on_jetstream(url, delete)
            found["nats backup restore stream"] = by_nats(
                program, url, "backup", "restore", "stream", str(theirs)
            )
            assert bulk.count(url, STREAM) == count
            shutil.rmtree(theirs)
        found["bulk.backup"] = by_us("backup", url, folder / "ours")
        found["bulk.to_parquet, no compression"] = by_us("to_parquet", url, folder / "archive")
        on_jetstream(url, delete)
        found["bulk.restore_backup"] = by_us("restore_backup", url, folder / "ours")
        assert bulk.count(url, STREAM) == count
        on_jetstream(url, delete)
        on_jetstream(url, make)
        found["bulk.restore, publishing"] = by_us("restore", url, folder / "archive")
        assert bulk.count(url, STREAM) == count
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--nats", metavar="FILE", help="program of the nats command")
    parser.add_argument("--job", nargs=3, metavar=("JOB", "URL", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(job(*options.job)))
        return
    mib = int(options.gib * 1024)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(mib, options.nats, Path(folder))
    print(f"{mib * 2**20 // VALUE:,} messages of {VALUE} random bytes, pyarrow {pa.__version__}")
    for name, each in found.items():
        print(
            f"{name:32} {each['seconds']:6.1f} s {mib * 1.048576 / each['seconds']:6.0f} MB/s "
            f"{each['processor']:6.1f} s of processor time, peak {each['peak']:5.0f} MiB"
        )


if __name__ == "__main__":
    main()
