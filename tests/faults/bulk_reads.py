"""Bulk reads over connections that fail, from servers that are killed.

A seed says which range is read and in what batches, and what happens after how many bytes: connections are
cut, truncated, stalled, delayed and refused by a proxy, the server is killed and started again. The rows must
be those that an ordinary client has read of the range, each once, in order; the gaps what is missing between
them; and no thread and no connection may be left.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access, Gap, Progress
from liftenvelope.client import OutgoingMessage
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.testing import FaultProxy, run_gateway, run_liftbridge, run_nats_server
from liftenvelope.testing._cluster import ServerCluster
from tests.faults.plan import Plan
from tests.faults.running import Result
from tests.integration.bulk_streams import BulkThreads, by_nats_py, make_stream, publish, with_jetstream

#: Offset, key, value, headers, subject.
Row = tuple[int, bytes, bytes, dict[str, bytes], str]

NAME: Final = "log"
COUNT: Final = 1_500
DELETED: Final = (0, 1, 2, 500, 700, 701, 1_200, COUNT - 2)
#: Short, so that a stall costs no time; a machine that is slower than that only connects once more.
ACCESS: Final = Access(stall_timeout=3.0, reconnect_wait=90.0, connect_timeout=10.0, timeout=20.0)
#: Reads in one run of the campaign.
_READS: Final = 5
#: What the campaign calls two of the faults.
_NAMES: Final = {"truncate_requests": "truncate", "restart": "kill"}


@dataclass(frozen=True)
class Log:
    """A stream on a server of one's own.

    Attributes:
        address: Where the server is.
        scheme: What the proxy's address is made a URL with.
        rows: What an ordinary client reads of it.
        restart: Kills the server, and returns when it is back.
        said: What the server has logged.
    """

    address: str
    scheme: str
    rows: list[Row]
    restart: Callable[[], None]
    said: Callable[[], str]


def value(number: int) -> bytes:
    """The value of a message: mostly short, now and then longer than what comes at a time."""
    chance = random.Random(number)
    size = chance.choice([0, 1, 20, 200, 200, 600, 600, 2_000] * 8 + [40_000, 300_000])
    return b"%d." % number + chance.randbytes(size)


@contextmanager
def jetstream_log() -> Iterator[Log]:
    """A stream of JetStream, of which messages were deleted."""
    with run_nats_server(jetstream=True) as server:
        make_stream(server.url, NAME)
        headers = [None, None, {"N": "1", "Long": "x" * 300}]
        publish(server.url, ((f"{NAME}.{i % 7}", value(i), headers[i % 3]) for i in range(COUNT)))

        async def delete(js: Any) -> None:
            for offset in DELETED:
                await js.delete_msg(NAME, offset + 1)

        with_jetstream(server.url, delete)

        def restart() -> None:
            server.kill()
            server.start()

        found = by_nats_py(server.url, NAME, COUNT - len(DELETED))
        rows = [
            (offset, b"", data, {name: text.encode() for name, text in fields.items()}, subject)
            for offset, subject, data, fields in found
        ]
        yield Log(server.address, "nats", rows, restart, server.log)


def liftbridge_log() -> AbstractContextManager[Log]:
    """A stream of the Liftbridge server."""
    return _cluster_log(run_liftbridge())


def gateway_log() -> AbstractContextManager[Log]:
    """A stream of the gateway."""
    return _cluster_log(run_gateway())


@contextmanager
def _cluster_log(starting: ServerCluster[Any]) -> Iterator[Log]:
    with starting as cluster:
        with liftenvelope.connect_blocking(cluster.addresses, ack_wait=60) as client:
            client.create_stream(NAME, NAME)
            headers = [None, None, {"n": b"1", "long": b"x" * 300}]
            keys = [None, b"k", b"\xff" * 40, b"k"]
            sent = [
                OutgoingMessage(value=value(i), key=keys[i % 4], headers=headers[i % 3]) for i in range(COUNT)
            ]
            client.publish_many(NAME, sent, partition=0, max_in_flight=100)
            with client.subscribe(NAME, start="earliest", stop="latest") as messages:
                rows = [(m.offset, m.key, m.value, dict(m.headers), m.subject) for m in messages]

        def restart() -> None:
            node = cluster.nodes[0]
            node.kill()
            node.start()
            _wake(cluster.addresses)

        yield Log(cluster.addresses[0], "liftbridge", rows, restart, cluster.log)


def _wake(addresses: list[str]) -> None:
    """Publish one more message: after a kill, Liftbridge may hide the end of the log until then."""
    deadline = time.monotonic() + 60
    with liftenvelope.connect_blocking(addresses, timeout=30, ack_wait=30) as client:
        while True:
            try:
                client.publish(NAME, b"wake", partition=0)
            except LiftEnvelopeError:
                # A broker that has just started knows no streams yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return


#: The logs by the names of their scenes.
LOGS: Final[Mapping[str, Callable[[], AbstractContextManager[Log]]]] = {
    "nats1": jetstream_log,
    "liftbridge1": liftbridge_log,
    "gateway1": gateway_log,
}


class Faults:
    """Disturbs the connections of one read, in a thread."""

    def __init__(self, proxy: FaultProxy, log: Log, chance: random.Random, *, kills: bool) -> None:
        self._proxy = proxy
        self._log = log
        self._chance = chance
        self._done = threading.Event()
        self._error: BaseException | None = None
        self.carried_out: Counter[str] = Counter()
        kinds = ["cut", "cut", "truncate", "truncate", "truncate", "truncate_requests", "delay", "refuse"]
        kinds += ["stall"] + ["restart"] * kills
        size = sum(len(row[2]) for row in log.rows)
        # Small numbers as often as large ones: much happens at the beginning of a connection.
        places = sorted(int(size ** chance.random()) for _ in range(chance.randrange(2, 7)))
        self._plan = [(place, chance.choice(kinds)) for place in places]
        self._base = proxy.bytes_to_client
        self._thread = threading.Thread(target=self._run, name="faults")

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._done.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if error is not None:
            error.add_note(", ".join(f"{kind} at {place}" for place, kind in self._plan))

    def _run(self) -> None:
        try:
            for place, kind in self._plan:
                while self._proxy.bytes_to_client - self._base < place:
                    if self._done.wait(0.001):
                        return
                getattr(self, f"_{kind}")()
                self.carried_out[_NAMES.get(kind, kind)] += 1
        except BaseException as exc:  # noqa: BLE001 - raised by the thread that reads
            self._error = exc

    def _cut(self) -> None:
        self._proxy.cut()

    def _truncate(self) -> None:
        self._proxy.truncate(int(200_000 ** self._chance.random()))

    def _truncate_requests(self) -> None:
        self._proxy.truncate(self._chance.randrange(600), "to_server")

    def _delay(self) -> None:
        self._proxy.delay(self._chance.choice([0.0, 0.005, 0.05]))

    def _refuse(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()
        self._done.wait(self._chance.random())
        self._proxy.accept()

    def _stall(self) -> None:
        direction: Any = self._chance.choice(["both", "to_client", "to_server"])
        self._proxy.stall(direction)
        self._done.wait(self._chance.random() * 2 * ACCESS.stall_timeout)
        self._proxy.resume(direction)

    def _restart(self) -> None:
        self._log.restart()


def run_plan(plan: Plan) -> Result:
    """Make a stream, and read parts of it while things happen to it."""
    result, began = Result(plan), time.monotonic()
    with LOGS[plan.scene]() as log:
        for number in range(_READS):
            before = time.monotonic()
            try:
                rows, faults = run_seed(log, plan.seed * _READS + number)
            except (AssertionError, LiftEnvelopeError) as exc:
                notes = " ".join(getattr(exc, "__notes__", ()))
                result.violations.append(f"read {number}: {exc!r} {notes}")
            else:
                result.acked += rows
                result.stored += rows
                result.faults += faults
            result.longest = max(result.longest, (time.monotonic() - before, "bulk.read"))
    result.seconds = time.monotonic() - began
    return result


def run_seed(log: Log, seed: int, *, kills: bool = True) -> tuple[int, Counter[str]]:
    """Read a part of the log while things happen to it.

    Returns:
        How many rows were read, and the faults that were carried out.

    Raises:
        AssertionError: The rows are not those of the log, or something is left behind.
        LiftEnvelopeError: The read failed.
    """
    chance, threads = random.Random(seed), BulkThreads()
    first = log.rows[0][0]
    start = chance.choice([first, first, chance.randrange(first, COUNT)])
    options = {
        "start": start,
        "stop": chance.choice([COUNT, COUNT, chance.randrange(start, COUNT + 1)]),
        "batch_rows": chance.choice([1, 7, 50, 50, 1_000]),
        "batch_bytes": chance.choice([1_000, 100_000, 8 * 1024 * 1024]),
        "parallel": chance.choice([1, 1, 1, 2, 3]),
        "on_retention": chance.choice(["raise", "skip"]),
    }
    # For how long the reader does something else, all in all: what it does not take is held back.
    pause = chance.choice([0.0, 0.0, 0.5, 3.0]) / COUNT
    with FaultProxy(log.address) as proxy:
        access = replace(ACCESS, address_map={log.address: proxy.address})
        try:
            read = _Read(f"{log.scheme}://{proxy.address}", access, options)
            # Not before: a call that can't begin fails at once.
            with Faults(proxy, log, chance, kills=kills) as faults:
                read.run(pause)
                read.check(log.rows)
            rows = read.count
        except Exception as exc:
            exc.add_note(f"seed {seed}: {options}, pause {pause}; the server said:\n{log.said()[-2_000:]}")
            raise
        del read
        _wait_until_gone(proxy)
    threads.wait_until_gone()
    return rows, faults.carried_out


class _Read:
    """A read, and what it says."""

    def __init__(self, url: str, access: Access, options: dict[str, Any]) -> None:
        self._options = options
        self._gaps: list[Gap] = []
        self._seen: list[Progress] = []
        self._rows: list[Row] = []
        self._reader = bulk.read(
            url, NAME, access=access, on_gap=self._gaps.append, progress=self._seen.append, **options
        )

    def run(self, pause: float) -> None:
        """Read it all, with a pause for each row."""
        for batch in self._reader:
            part = rows_of(batch)
            assert [row[0] for row in part] == sorted(row[0] for row in part)
            self._rows += part
            time.sleep(pause * len(part))
        if self._options["parallel"] > 1:  # the batches of several threads come in turns
            self._rows.sort(key=lambda row: row[0])

    @property
    def count(self) -> int:
        """Number of rows that were read."""
        return len(self._rows)

    def check(self, log: list[Row]) -> None:
        """Hold the rows to those of the log; each other offset of the range must be in a gap."""
        start, stop = self._options["start"], self._options["stop"]
        expected = [row for row in log if start <= row[0] < stop]
        there = [row[0] for row in expected]
        assert [row[0] for row in self._rows] == there
        assert self._rows == expected
        missing = [offset for gap in self._gaps for offset in range(gap.start, gap.stop)]
        assert sorted(there + missing) == list(range(start, stop))
        if self._seen:
            assert self._seen[-1].done == self._seen[-1].total == stop - start


def rows_of(batch: Any) -> list[Row]:
    """The rows of a batch, with b"" for a key that is null."""
    names = ("offset", "key", "value", "headers", "subject")
    columns = (batch[name].to_pylist() for name in names)
    return [
        (offset, key or b"", data, dict(headers), subject)
        for offset, key, data, headers, subject in zip(*columns, strict=True)
    ]


def _wait_until_gone(proxy: FaultProxy) -> None:
    deadline = time.monotonic() + 30
    while proxy.open_connections:
        assert time.monotonic() < deadline, _left_open(proxy)
        time.sleep(0.01)


def _left_open(proxy: FaultProxy) -> str:
    """Tell what may hold the connections: a thread, or garbage."""
    count, frames = proxy.open_connections, sys._current_frames()
    stacks = ["".join(traceback.format_stack(frames[id_])) for id_ in frames if id_ != threading.get_ident()]
    gc.collect()
    time.sleep(1)
    text = f"{count} connections were left open, {count - proxy.open_connections} of them by garbage"
    return "\n".join([f"{text}; the threads:", *stacks])
