"""Health and metrics of several workers, for one HTTP server; it needs the extra ``http``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector

from liftenvelope.gateway._families import PREFIX, Metric, MetricSample
from liftenvelope.gateway._workers.families import WORKER_FAMILIES
from liftenvelope.gateway._workers.frames import metrics_from
from liftenvelope.gateway.metrics import exposed

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Exposed

    from liftenvelope.gateway._workers.slot import WorkerSlot
    from liftenvelope.gateway.limits import Limits

__all__ = ["WorkersMonitor"]

#: Seconds to wait for the metrics of a worker.
_PATIENCE: Final = 5.0
_LABEL: Final = "worker"


class WorkersMonitor:
    """Health and metrics of all workers: each metric has the number of its worker as a label.

    Args:
        workers: The workers.
        limits: Limits on clients.
    """

    def __init__(self, workers: Sequence[WorkerSlot], limits: Limits) -> None:
        self._workers = workers
        self.limits = limits

    def look(self) -> tuple[bool, str]:
        """Return whether at least one worker is ready, and a line for each unmet condition of a worker."""
        if not self._workers:
            return False, "running: no worker is started\n"
        unready = [worker for worker in self._workers if worker.reasons]
        lines = [
            f"worker {worker.number}: {name}: {reason}\n"
            for worker in unready
            for name, reason in worker.reasons.items()
        ]
        count, every = len(self._workers) - len(unready), len(self._workers)
        head = "" if not count else "ready\n" if not unready else f"ready: {count} of {every} workers\n"
        return bool(count), head + "".join(lines)

    async def families(self) -> list[Exposed]:
        """Return the metrics of all workers that answer within 5 seconds, and those about the workers."""
        answers = await asyncio.gather(*(worker.tell("metrics", _PATIENCE) for worker in self._workers))
        merged: dict[str, Exposed] = {}
        for worker, answer in zip(self._workers, answers, strict=True):
            of_gateway = map(exposed, metrics_from(answer.get("metrics", [])))
            for family in _labelled([*of_gateway, *_of_process(worker)], str(worker.number)):
                if (first := merged.setdefault(family.name, family)) is not family:
                    first.samples.extend(family.samples)
        return [*map(exposed, self._own()), *merged.values()]

    def _own(self) -> Iterator[Metric]:
        for name, kind, text, value in WORKER_FAMILIES:
            samples = [MetricSample((str(worker.number),), value(worker)) for worker in self._workers]
            yield Metric(PREFIX + name, kind, text, (_LABEL,), samples)


def _of_process(worker: WorkerSlot) -> Iterable[Exposed]:
    process = worker.process
    if process is None:
        return ()
    return ProcessCollector(pid=lambda: process.pid, registry=None).collect()


def _labelled(families: Iterable[Exposed], worker: str) -> Iterator[Exposed]:
    """Give each sample the label of its worker."""
    for family in families:
        family.samples = [
            sample._replace(labels={_LABEL: worker, **sample.labels}) for sample in family.samples
        ]
        yield family
