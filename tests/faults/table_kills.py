"""Kill writers of one table with SIGKILL, again and again, each time at another moment of their work.

python -m tests.faults.table_kills --make iceberg --kills 100
python -m tests.faults.table_kills --make delta --kills 100 --seed 17

Two writers write the same stream into the same table at once. A round publishes rows, starts both, and kills
both after a random part of the time that a round takes without a kill. The next round goes on. In the end,
every offset must be in the table once, with its value.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import nats
import pyarrow as pa

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server
from tests.faults.tables import READERS, keep_table, open_writer

_STREAM: Final = "KILLS"
_ROWS: Final = 400
_FORKS: Final = multiprocessing.get_context("forkserver")
#: Rounds between two that are not killed, which tell how long a round takes.
_WHOLE: Final = 10


def _finish(tell: Connection, options: dict[str, Any]) -> None:
    """Bring the table up to date, and tell how many seconds that took."""
    began = time.monotonic()
    with open_writer(**options) as writer:
        writer.catch_up()
    tell.send(time.monotonic() - began)


def _whole_round(options: dict[str, Any]) -> float:
    told, tell = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_finish, args=(tell, options))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a writer ended with status {process.exitcode}")
    seconds: float = told.recv()
    return seconds


def _killed_round(options: dict[str, Any], moments: list[float]) -> None:
    # Nobody reads what they tell: it fits into the pipe.
    told, tell = _FORKS.Pipe(duplex=False)
    writers = [_FORKS.Process(target=keep_table, args=(tell, options), daemon=True) for _ in moments]
    began = time.monotonic()
    for writer in writers:
        writer.start()
    for moment, writer in sorted(zip(moments, writers, strict=True), key=lambda pair: pair[0]):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        writer.kill()
        writer.join()
    told.close()
    tell.close()


async def _make_stream(url: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(StreamConfig(name=_STREAM, subjects=(f"{_STREAM}.>",)))


def _values(start: int, count: int) -> list[bytes]:
    return [b"%d" % index for index in range(start, start + count)]


def run(make: str, kills: int, seed: int, *, chatty: bool = False) -> list[str]:
    """Run a campaign; return what is wrong with the table.

    Args:
        make: Format of the table.
        kills: Number of writers to kill.
        seed: Seed of the moments.
        chatty: Whether to print a line for each whole round.
    """
    chance = random.Random(f"{make} {seed}")
    _FORKS.set_forkserver_preload([__name__])
    with run_nats_server(jetstream=True) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(_make_stream(server.url))
        options = {
            "make": make,
            "source": [server.url],
            "stream": _STREAM,
            "place": folder,
            "access": {},
            "partitioned": bool(seed % 2),
        }
        published, done, seconds = 0, 0, 0.0
        for round_ in range(-(-kills // 2) + 1):
            values = _values(published, _ROWS)
            rows = pa.table({"value": values})
            published += bulk.write(server.url, _STREAM, rows, subject=f"{_STREAM}.a").acked
            if round_ % _WHOLE == 0:
                seconds = _whole_round(options)
                if chatty:
                    print(f"{make}: {done} kills, {published} rows, {seconds:.2f} s for a round", flush=True)
            else:
                _killed_round(options, [chance.random() * 1.2 * seconds for _ in range(2)])
                done += 2
        _whole_round(options)
        return _compare(READERS[make, 0](Path(folder)), published)


def _compare(table: pa.Table, published: int) -> list[str]:
    rows = table.select(["offset", "value"]).sort_by("offset")
    offsets = rows["offset"].to_pylist()
    wrong = []
    if len(set(offsets)) != len(offsets):
        wrong.append(f"{len(offsets) - len(set(offsets))} offsets are there more than once")
    if missing := set(range(published)) - set(offsets):
        wrong.append(f"{len(missing)} offsets are missing, such as {min(missing)}")
    if not wrong and rows["value"].to_pylist() != _values(0, published):
        wrong.append("values are not those that were published")
    return wrong


def main() -> int:
    """Run a campaign from the command line; return 1 if anything is wrong."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.table_kills", description=description)
    parser.add_argument("--make", choices=("iceberg", "delta"), required=True, help="format of the table")
    parser.add_argument("--kills", type=int, default=100, help="writers to kill; default 100")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments; default 0")
    options = parser.parse_args()
    began = time.monotonic()
    wrong = run(options.make, options.kills, options.seed, chatty=True)
    for text in wrong:
        print(f"WRONG: {text}")
    print(f"{options.make}: {options.kills} kills, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
