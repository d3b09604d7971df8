"""Kill writers of one table with SIGKILL, again and again, each time at another moment of their work.

python -m tests.faults.table_kills --make iceberg --kills 100
python -m tests.faults.table_kills --make delta --kills 100 --seed 17
python -m tests.faults.table_kills --make delta --payload arrow

Two writers write the same stream into the same table at once. A round publishes rows, starts both, and kills
both after a random part of the time that a round takes without a kill. The next round goes on. In the end,
every row must be in the table once, with its value. With a payload, each round publishes a bad message, too,
which must be in the table once as well.
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
from liftenvelope.bulk import TableOptions
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server
from tests.faults.tables import READERS, keep_table, open_writer

_STREAM: Final = "KILLS"
_ROWS: Final = 400
#: Rows of a message that carries many.
_PACKED: Final = 30
#: Field of a payload.
_NUMBER: Final = "number"
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
        await JetStream(nc, timeout=60).create_stream(StreamConfig(name=_STREAM, subjects=(f"{_STREAM}.>",)))


class _Rows:
    """Rows with the numbers from 0, as values or in a payload.

    Attributes:
        payload: Name of the format; None for values.
        published: Number of rows that were published.
        bad: Number of bad messages that were published.

    Args:
        payload: Name of the format; None for values.
    """

    def __init__(self, payload: str | None) -> None:
        self.payload = payload
        self.published = self.bad = 0

    @property
    def typed(self) -> TableOptions:
        """Options of a table with the rows."""
        if self.payload is None:
            return {}
        columns = ["offset", "timestamp", _NUMBER, *(["row"] if self.payload == "arrow" else [])]
        kind = {"format": self.payload, "schema": {_NUMBER: "int64"}}
        return {"payload": kind, "columns": columns, "on_bad": "column"}

    def publish(self, url: str) -> None:
        """Publish the rows of a round."""
        numbers = range(self.published, self.published + _ROWS)
        subject = f"{_STREAM}.a"
        if self.payload is None:
            bulk.write(
                url, _STREAM, pa.table({"value": [b"%d" % number for number in numbers]}), subject=subject
            )
        else:
            rows = pa.table({_NUMBER: pa.array(numbers, pa.int64())})
            bulk.write(url, _STREAM, rows, subject=subject, payload=self.payload, pack_rows=_PACKED)
            bulk.write(url, _STREAM, pa.table({"value": [b"bad"]}), subject=subject)
            self.bad += 1
        self.published += _ROWS

    def compare(self, table: pa.Table) -> list[str]:
        """Return what is wrong with a table."""
        rows = sorted(table.to_pylist(), key=lambda row: (row["offset"], row.get("row") or 0))
        found = [row["value" if self.payload is None else _NUMBER] for row in rows]
        numbers = [int(number) for number in found if number is not None]
        places = {(row["offset"], row.get("row")) for row in rows}
        wrong = []
        if len(places) != len(rows):
            wrong.append(f"{len(rows) - len(places)} rows are there more than once")
        if missing := set(range(self.published)) - set(numbers):
            wrong.append(f"{len(missing)} rows are missing, such as {min(missing)}")
        if not wrong and len(rows) != self.published + self.bad:
            wrong.append(f"{len(rows)} rows instead of {self.published} and {self.bad} bad ones")
        if not wrong and numbers != list(range(self.published)):
            wrong.append("values are not those that were published")
        return wrong


def run(make: str, kills: int, seed: int, *, payload: str | None = None, chatty: bool = False) -> list[str]:
    """Run a campaign; return what is wrong with the table.

    Args:
        make: Format of the table.
        kills: Number of writers to kill.
        seed: Seed of the moments.
        payload: Format of the values: ``"json"``, ``"arrow"`` or None.
        chatty: Whether to print a line for each whole round.
    """
    chance = random.Random(f"{make} {seed}")
    stored = _Rows(payload)
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
            "typed": stored.typed,
        }
        done, seconds = 0, 0.0
        for round_ in range(-(-kills // 2) + 1):
            stored.publish(server.url)
            if round_ % _WHOLE == 0:
                seconds = _whole_round(options)
                if chatty:
                    print(
                        f"{make}: {done} kills, {stored.published} rows, {seconds:.2f} s for a round",
                        flush=True,
                    )
            else:
                _killed_round(options, [chance.random() * 1.2 * seconds for _ in range(2)])
                done += 2
        _whole_round(options)
        return stored.compare(READERS[make, 0](Path(folder)))


def main() -> int:
    """Run a campaign from the command line; return 1 if anything is wrong."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.table_kills", description=description)
    parser.add_argument("--make", choices=("iceberg", "delta"), required=True, help="format of the table")
    parser.add_argument("--kills", type=int, default=100, help="writers to kill; default 100")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments; default 0")
    parser.add_argument(
        "--payload", choices=("json", "arrow"), help="format of the values; default: plain bytes"
    )
    options = parser.parse_args()
    began = time.monotonic()
    wrong = run(options.make, options.kills, options.seed, payload=options.payload, chatty=True)
    for text in wrong:
        print(f"WRONG: {text}")
    print(f"{options.make}: {options.kills} kills, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
