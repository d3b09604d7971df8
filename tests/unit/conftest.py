"""Fixtures of the unit tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from liftenvelope.client._brokers import cluster
from liftenvelope.client._reading import subscribe_call, subscription
from liftenvelope.client.retries import RETRIES


@pytest.fixture
async def loop_errors() -> AsyncIterator[list[dict[str, Any]]]:
    """Fail a test that leaves an unhandled error in its event loop."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    yield seen
    assert not seen


@pytest.fixture
def patient_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each attempt of a client take all the time of its call, for tests that count the calls.

    The client gives up an attempt after 3 s, and then repeats it: right for a broker that stalls, but a
    loaded machine may stop the whole process for longer.
    """
    patient = {method: replace(rule, attempt_timeout=None) for method, rule in RETRIES.items()}
    monkeypatch.setattr(cluster, "RETRIES", patient)
    monkeypatch.setattr(subscribe_call, "HANDSHAKE_TIMEOUT", 60.0)
    monkeypatch.setattr(subscription, "_CHECK_TIMEOUT", 60.0)
    monkeypatch.setattr(subscription, "_CLOSED_CHECK_TIMEOUT", 60.0)
