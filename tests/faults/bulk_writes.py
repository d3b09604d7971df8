"""Paths of whole tables: ``bulk.write`` in every mode, and a writer that is killed and runs again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, Final

from liftenvelope import bulk
from liftenvelope.bulk import Access, Progress, WriteFailedError
from liftenvelope.errors import LiftEnvelopeError
from tests.faults.children import FAILED, Child, make_table, program
from tests.faults.running import Path, Run

__all__ = ["BULK_PATHS", "access_of", "run_child", "write_rows"]

_PARTITIONS: Final = 3
#: Rows of one write, as a part of the goal; a process is started for each larger part.
_PART: Final = 0.2
_PART_OF_CHILD: Final = 0.34
_ROWS: Final = 4_000
#: Seconds to wait after a write that could not begin.
_PAUSE: Final = 0.2
_RECONNECT: Final = 30.0


def access_of(run: Run) -> dict[str, Any]:
    """Return how a run reaches its servers, as arguments of Access."""
    return {
        "timeout": run.plan.timeout,
        "stall_timeout": run.plan.timeout,
        "reconnect_wait": _RECONNECT,
        "connect_timeout": 10.0,
        "address_map": run.scene.address_map,
    }


def write_rows(run: Run, mode: Any = "auto", part: float = _PART) -> None:
    """Write one table, and note what became of its rows.

    Args:
        run: The run.
        mode: As for ``bulk.write``.
        part: How many rows it has, as a part of the goal.
    """
    indexes = run.ledger.take_many(max(100, int(run.plan.goal * part)))
    table = make_table(run.messages, indexes, partitioned=run.scene.cluster is not None)
    options: dict[str, Any] = {"subject": f"{run.stream}.rows", "mode": mode}
    if run.scene.cluster is not None:
        options = {"ack_policy": run.scene.ack_policy}

    def progress(seen: Progress) -> None:
        run.under_way = seen.rows

    try:
        with run.timed(f"bulk.write {mode}", run.plan.timeout + _RECONNECT):
            written = bulk.write(
                run.scene.source,
                run.stream,
                table.to_reader(_ROWS),
                progress=progress,
                access=Access(**access_of(run)),
                **options,
            )
    except WriteFailedError as exc:
        run.ledger.failed_span(indexes, exc)
    except LiftEnvelopeError as exc:
        run.ledger.failed_many(indexes, exc)
        time.sleep(_PAUSE)
    else:
        if written.acked != len(indexes):
            run.violate(f"a write of {len(indexes)} rows says that it stored {written.acked}")
        run.ledger.stored_span(indexes, written.offsets)
    finally:
        run.under_way = 0


def _writes(mode: str) -> Callable[[Run], None]:
    def work(run: Run) -> None:
        while not run.is_over():
            write_rows(run, mode)

    return work


def run_child(run: Run, name: str, command: list[str], bound: float) -> list[dict[str, Any]]:
    """Run a process of the path to its end, whatever it is; return what it has told.

    Args:
        run: The run, whose faults may kill or stop the process.
        name: What the plan calls it.
        command: The program.
        bound: Seconds that it may take, beside the time that a fault stops it for.
    """
    told: list[dict[str, Any]] = []

    def take(line: bytes) -> None:
        told.append(json.loads(line))
        run.under_way = told[-1].get("rows", run.under_way)

    child = Child(lambda _: command, take)
    child.start()
    with _registered(run, name, child), run.timed(name, bound):
        status = child.wait()
    for word in (told[-1].get("error"), told[-1].get("cause")) if told and status == FAILED else ():
        if word:
            run.ledger.errors[word] += 1
    if status not in (0, FAILED, -9):
        run.violate(f"{name} ended with status {status}: {told[-1:]}")
    run.under_way = 0
    return told


@contextmanager
def _registered(run: Run, name: str, child: Child) -> Any:
    run.processes[name] = _Once(child)
    try:
        yield
    finally:
        del run.processes[name]


class _Once:
    """A child for the injector, which must not start it: the path does."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    def kill(self) -> None:
        self._child.kill()

    def start(self) -> None:
        """Do nothing."""


def _writes_with_ids(run: Run) -> None:
    """Every table is written by a process, again and again with the same ids until it has succeeded."""
    while not run.is_over():
        indexes = run.ledger.take_many(max(100, int(run.plan.goal * _PART_OF_CHILD)))
        command = program(
            "write",
            source=run.scene.source,
            stream=run.stream,
            seed=run.plan.seed,
            start=indexes.start,
            stop=indexes.stop,
            access=access_of(run),
        )
        attempts = 0
        while True:
            told = run_child(run, "writer", command, run.plan.timeout + _RECONNECT)
            if told and "written" in told[-1]:
                break
            attempts += 1
            run.is_over()  # raises where nothing goes on any more
            time.sleep(_PAUSE)
        if attempts:
            run.ledger.unorder(indexes)
        run.ledger.stored_span(indexes, None)


BULK_PATHS: Final = {
    "bulk-pipelined": Path(_writes("pipelined")),
    "bulk-ids": Path(_writes_with_ids),
    "bulk-atomic": Path(_writes("atomic")),
    "bulk-fast": Path(_writes("fast")),
    "bulk-liftbridge": Path(_writes("auto"), _PARTITIONS),
}
