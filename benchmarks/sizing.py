"""Cost of a megabyte: ``python -m benchmarks.sizing`` prints the table that docs/sizing.md calculates with.

Each line writes messages of one size into a stream on disk and reads them again, and shows the rate and the
processor time for each megabyte of values: that of our process, and that of nats-server. The least of the
rounds counts: all else that the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

import nats
import pyarrow as pa

from benchmarks import processor_time
from benchmarks.bulk_streams import make_stream, rows
from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StorageType
from liftenvelope.testing import NatsServer, run_nats_server

SIZES: Final = (100, 1_000, 10_000, 100_000)
#: Bytes that a line moves, and the most messages of it.
VOLUME: Final = 200_000_000
MOST: Final = 500_000
ROUNDS: Final = 3
_MB: Final = 1e6
_HEAD: Final = ("messages", "step", "rows/s", "MB/s", "our processor time", "nats-server's")


class Cost(NamedTuple):
    """Cost of one step.

    Attributes:
        seconds, ours, servers: Time, and processor time of our process and of nats-server, in seconds.
    """

    seconds: float
    ours: float
    servers: float


@dataclass(frozen=True)
class Kind:
    """Messages of one line.

    Attributes:
        what: Name of the line.
        table: The rows.
        nbytes: Bytes of the values in all rows.
        options: What a write and a read need in addition.
    """

    what: str
    table: pa.Table
    nbytes: int
    options: dict[str, Any]


def kinds(part: float = 1.0) -> Iterator[Kind]:
    """Yield the lines of the table; ``part`` of the messages of each."""
    for size in SIZES:
        count = max(int(min(VOLUME // size, MOST) * part), 10)
        yield Kind(f"{size:,} B", rows(count, size), count * size, {})
    count = max(int(MOST * 4 * part), 10)
    packed = rows(count, 100).rename_columns(["row_value"])
    yield Kind("rows of 100 B in record batches", packed, count * 100, {"payload": "arrow"})


def measured(server: NatsServer, step: Callable[[], object]) -> Cost:
    """Return the cost of a step."""
    began, ours, servers = perf_counter(), processor_time.own(), processor_time.of_process(server.pid)
    step()
    return Cost(
        perf_counter() - began,
        processor_time.own() - ours,
        processor_time.of_process(server.pid) - servers,
    )


def costs(server: NatsServer, kind: Kind, rounds: int) -> tuple[Cost, Cost]:
    """Return what it costs to write the messages, and to read them."""
    writes, reads = [], []
    for _ in range(rounds):
        name = make_stream(server.url, storage=StorageType.FILE)
        write = partial(bulk.write, server.url, name, kind.table, subject=name, **kind.options)
        writes.append(measured(server, write))
        reads.append(measured(server, partial(read, server, name, kind)))
        asyncio.run(delete(server, name))
    return least(writes), least(reads)


def least(found: Sequence[Cost]) -> Cost:
    """Return the least of each figure."""
    return Cost(*(min(figures) for figures in zip(*found, strict=True)))


def read(server: NatsServer, name: str, kind: Kind) -> None:
    """Read all rows, batch by batch."""
    assert sum(batch.num_rows for batch in bulk.read(server.url, name, **kind.options)) == len(kind.table)


async def delete(server: NatsServer, name: str) -> None:
    """Delete a stream, so that a run needs no more of the disk than one of them."""
    async with await nats.connect(server.url) as nc:
        await JetStream(nc).delete_stream(name)


def line(kind: Kind, step: str, cost: Cost) -> str:
    """Return a line of the table."""
    volume = kind.nbytes / _MB
    cells = (
        kind.what,
        step,
        f"{len(kind.table) / cost.seconds:,.0f}",
        f"{volume / cost.seconds:,.0f}",
        f"{cost.ours / volume * 1e3:.2f} ms/MB",
        f"{cost.servers / volume * 1e3:.2f} ms/MB",
    )
    return f"| {' | '.join(cells)} |"


def table(part: float = 1.0, rounds: int = ROUNDS) -> Iterator[str]:
    """Yield the lines of the table as they are measured."""
    yield f"| {' | '.join(_HEAD)} |"
    yield f"|{' --- |' * len(_HEAD)}"
    with run_nats_server(jetstream=True) as server:
        for kind in kinds(part):
            writing, reading = costs(server, kind, rounds)
            yield line(kind, "write", writing)
            yield line(kind, "read", reading)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="part of the messages, for a quick look")
    options = parser.parse_args()
    for text in table(options.part):
        print(text, flush=True)


if __name__ == "__main__":
    main()
