"""Shared by all tests: the examples of hypothesis, the order of the files, and log lines that start afresh.

A run of the gate repeats itself: the same commit gives the same verdict. New examples are sought by
``make soak``, with ``--hypothesis-profile=search``; what that finds becomes a test with the example in it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from liftenvelope._logs import LIMITED

# A loaded machine is slow, and no finding.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("repeatable", _PATIENT, derandomize=True)
# On further interpreters and without the extensions. The first run has tried all examples, and of the rest a
# quarter shows whether an interpreter differs.
settings.register_profile("further", _PATIENT, derandomize=True, max_examples=25)
settings.register_profile("search", _PATIENT, max_examples=2_000, print_blob=True)
settings.load_profile("repeatable")

# Settings of the caller's terminal: help and tables are folded to its width, and coloured.
for name in ("COLUMNS", "FORCE_COLOR"):
    os.environ.pop(name, None)

# `make test-uvloop`: each loop of the tests is uvloop's, also those of asyncio.run and the blocking client.
if os.environ.get("LIFTENVELOPE_TEST_LOOP") == "uvloop":
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

# `make test-spark` installs Spark before it runs these; other runs need not have it.
collect_ignore = [] if find_spec("pyspark") else ["spark"]

#: Files that take a process a minute or more. They run first, so that no process is alone with one at the end
#: (see --no-loadscope-reorder in the Makefile). Those that mostly wait stand between those that compute.
_SLOWEST = (
    "integration/spark/test_subscriptions.py",
    "integration/project/test_operating_permissions.py",
    "integration/jetstream/test_restarts.py",
    "integration/gateway/test_compaction.py",
    "integration/jetstream/test_offline.py",
    "integration/project/test_documented_programs.py",
    "integration/jetstream/test_drain.py",
    "faults/test_slice.py",
    "integration/group/test_faults.py",
    "integration/project/test_examples.py",
    "integration/jetstream/test_groups.py",
    "integration/gateway/test_serve.py",
    "integration/jetstream/test_long_fetches.py",
    "integration/bulk/test_archive.py",
    "integration/spark/test_once.py",
    "hostile/test_slice.py",
    "integration/testing/test_ports.py",
    "integration/testing/test_liftbridge.py",
)


# Until all tests are imported there is little garbage, and to look for it took a fifth of the time.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Free collections of garbage from what was imported: visiting it took a seventh of the unit tests.

    Unlike ``pytest_collection_finish``, it is also called in the process that only hands out the tests.
    """
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the slowest files to the front; the others keep their order."""
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate(_SLOWEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_runtest_setup() -> None:
    """Forget the log lines of earlier tests: a process logs at most 20 of a kind in a minute."""
    LIMITED.throttle.clear()


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Undo the changes of logging of a command that serves, run in the process of the test."""
    loggers = [logging.getLogger(name) for name in ("liftenvelope", "liftenvelope.gateway.nats")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    logging.captureWarnings(False)
