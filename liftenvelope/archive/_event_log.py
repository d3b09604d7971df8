"""Log lines of the archive daemon."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from liftenvelope._logs import event_logger, log_event

__all__ = [
    "PipelineCommitted",
    "PipelineFailed",
    "PipelineMaintained",
    "PipelineRecovered",
    "PipelineWrote",
    "StopRequested",
    "logged",
]


@dataclass(frozen=True, slots=True)
class PipelineWrote:
    """A run has added rows to an archive."""

    pipeline: str
    rows: int
    bytes: int
    files: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelineCommitted:
    """A run has added rows to a table."""

    pipeline: str
    rows: int
    commits: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelineFailed:
    """A run has failed."""

    pipeline: str
    error: str
    failures: int
    wait: float


@dataclass(frozen=True, slots=True)
class OnlyRunFailed:
    """The run of a pipeline that runs once has failed."""

    pipeline: str
    error: str


@dataclass(frozen=True, slots=True)
class PipelineMaintained:
    """The upkeep of a table is done."""

    pipeline: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelineRecovered:
    """A run has ended well after failed ones."""

    pipeline: str
    failures: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The daemon stops."""

    running: int
    timeout: float


_log: Final = event_logger("archive")
_LINES: Final[Mapping[type, tuple[int, str]]] = {
    PipelineWrote: (
        logging.INFO,
        "pipeline %(pipeline)s wrote %(rows)d rows in %(files)d files, %(bytes)d bytes, in %(seconds).1f s",
    ),
    PipelineCommitted: (
        logging.INFO,
        "pipeline %(pipeline)s wrote %(rows)d rows in %(commits)d commits, in %(seconds).1f s",
    ),
    PipelineFailed: (
        logging.WARNING,
        "pipeline %(pipeline)s failed, %(failures)d times in a row, next run in %(wait).1f s: %(error)s",
    ),
    OnlyRunFailed: (logging.WARNING, "pipeline %(pipeline)s failed: %(error)s"),
    PipelineMaintained: (logging.INFO, "pipeline %(pipeline)s maintained its table in %(seconds).1f s"),
    PipelineRecovered: (logging.INFO, "pipeline %(pipeline)s works again, after %(failures)d failed runs"),
    StopRequested: (
        logging.INFO,
        "stopping: %(running)d pipelines finish their files, for at most %(timeout)g s",
    ),
}


def logged(event: object) -> None:
    """Log an event of the daemon."""
    log_event(_log, _LINES, event)
