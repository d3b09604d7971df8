"""Health and metrics of an archive daemon, for the gateway's HTTP server; it needs the extra ``http``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector, metrics_core

from liftenvelope.archive._state import PipelineState, readiness
from liftenvelope.gateway.limits import Limits

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["FAMILIES", "ArchiveMonitor"]

_PREFIX: Final = "liftenvelope_archive_"
#: Metrics by name: help text, whether it is a counter, and its value.
FAMILIES: Final[Mapping[str, tuple[str, bool, Callable[[PipelineState], float]]]] = {
    "rows": ("Rows written.", True, lambda one: one.rows),
    "bytes": ("Bytes of files written.", True, lambda one: one.nbytes),
    "runs": ("Runs that ended well.", True, lambda one: one.runs),
    "failures": ("Runs that failed.", True, lambda one: one.failures),
    "failures_in_a_row": ("Failed runs since the last good one.", False, lambda one: one.failures_in_a_row),
    "dead_letters": ("Bad messages written as dead letters.", True, lambda one: one.dead_letters),
    "running": ("1 while a run works.", False, lambda one: one.is_running),
    "pending_offsets": ("Offsets that the current run has to read.", False, lambda one: one.pending),
    "last_success_timestamp_seconds": ("Time of the last good run.", False, lambda one: one.succeeded_at),
}


class ArchiveMonitor:
    """Tells the health and the metrics of the pipelines.

    Args:
        states: States of the pipelines.

    Attributes:
        limits: Limits on HTTP clients.
    """

    def __init__(self, states: Sequence[PipelineState]) -> None:
        self._states = states
        self._process = ProcessCollector(registry=None)
        self.limits = Limits()

    def look(self) -> tuple[bool, str]:
        """Return whether no pipeline fails, and a line for each that does."""
        return readiness(self._states)

    async def families(self) -> list[Metric]:
        """Return the metrics of the pipelines and of the process."""
        return [*self._collect(), *self._process.collect()]

    def _collect(self) -> Iterator[Metric]:
        for name, (text, is_counter, read) in FAMILIES.items():
            kind = metrics_core.CounterMetricFamily if is_counter else metrics_core.GaugeMetricFamily
            family = kind(_PREFIX + name, text, labels=["pipeline"])
            for one in self._states:
                family.add_metric([one.name], float(read(one)))
            yield family
