"""Memory of an archive job: ``python -m benchmarks.archive_memory --gib 5``.

A stream with that much in messages of 1 KiB is made, and written into Parquet files by a process of its own,
whose peak of resident memory is printed. What it holds must not depend on the length of the stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import nats
import pyarrow as pa

import liftenvelope
from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_gateway, run_liftbridge, run_nats_server

ROOT = Path(__file__).parent.parent
STREAM: Final = "archive"
VALUE: Final = 1024
#: Messages that are made at a time.
ROWS: Final = 8 * 1024
TARGET: Final = 300


@contextmanager
def _jetstream() -> Iterator[str]:
    async def make(url: str) -> None:
        async with await nats.connect(url) as nc:
            await JetStream(nc).create_stream(StreamConfig(name=STREAM, subjects=(STREAM,)))

    with run_nats_server(jetstream=True) as server:
        asyncio.run(make(server.url))
        yield server.url


@contextmanager
def _cluster(starting: Any) -> Iterator[str]:
    with starting as cluster:
        with liftenvelope.connect_blocking(cluster.addresses) as client:
            client.create_stream(STREAM, STREAM)
        yield f"liftbridge://{cluster.addresses[0]}"


def serving(server: str) -> AbstractContextManager[str]:
    """The URL of a server with an empty stream."""
    if server == "jetstream":
        return _jetstream()
    return _cluster(run_liftbridge() if server == "liftbridge" else run_gateway())


def messages(count: int) -> pa.RecordBatchReader:
    """Rows that no compression makes smaller."""
    schema = pa.schema({"value": pa.binary()})
    lengths = pa.array(range(0, (ROWS + 1) * VALUE, VALUE), pa.int32()).buffers()[1]

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, count, ROWS):
            data = pa.py_buffer(os.urandom(ROWS * VALUE))
            values = pa.Array.from_buffers(pa.binary(), min(ROWS, count - begin), [None, lengths, data])
            yield pa.record_batch([values], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def fill(url: str, count: int) -> None:
    """Publish so many messages of 1 KiB."""
    jetstream = url.startswith("nats:")
    options: dict[str, Any] = {"subject": STREAM} if jetstream else {"partition": 0}
    # The disk is slower than the rest, and may be for a while.
    bulk.write(url, STREAM, messages(count), access=bulk.Access(timeout=60.0), **options)


def archive(url: str, folder: str) -> dict[str, float]:
    """Write the stream into a folder; return what that took of this process."""
    before, began = _peak(), time.monotonic()
    done = bulk.to_parquet(url, STREAM, folder)
    seconds, processor = time.monotonic() - began, time.process_time()
    return {
        "rows": done.rows,
        "files": len(done.files),
        "bytes": done.bytes,
        "seconds": seconds,
        "processor": processor,
        "peak": _peak(),
        "before": before,
    }


def _peak() -> float:
    """The most of this process that was in memory, in MiB. (getrusage begins with what the parent had.)"""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measured(server: str, mib: int, folder: str) -> dict[str, float]:
    """Measure the memory of an archive job of some MiB, in a process of its own."""
    with serving(server) as url:
        fill(url, mib * 2**20 // VALUE)
        command = [sys.executable, "-m", "benchmarks.archive_memory", "--job", url, folder]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Run it and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=5.0)
    parser.add_argument("--server", choices=("jetstream", "liftbridge", "gateway"), default="jetstream")
    parser.add_argument("--job", nargs=2, metavar=("URL", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(archive(*options.job)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options.server, int(options.gib * 1024), folder)
    print(
        f"{options.server}: {found['rows']:,.0f} rows of {VALUE} B into {found['files']:.0f} files, "
        f"{found['bytes'] / 2**20:,.0f} MiB, in {found['seconds']:.0f} s ({found['processor']:.0f} s of "
        f"processor time)\nresident MiB at most: {found['peak']:.0f}, of which {found['before']:.0f} before "
        f"the job began (target: less than {TARGET})"
    )


if __name__ == "__main__":
    main()
