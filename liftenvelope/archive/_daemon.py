"""Runs the pipelines of a configuration: each again and again, a limited number at a time."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from liftenvelope._backoff import Backoff
from liftenvelope._secrets import without_secrets
from liftenvelope.archive._event_log import (
    OnlyRunFailed,
    PipelineCommitted,
    PipelineFailed,
    PipelineMaintained,
    PipelineRecovered,
    PipelineWrote,
    StopRequested,
    logged,
)
from liftenvelope.archive._state import PipelineState
from liftenvelope.archive.config import ArchiveConfig, PipelineConfig
from liftenvelope.bulk import Progress, TableWritten
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway.http_endpoint import serving_http
from liftenvelope.gateway.notify import notify
from liftenvelope.gateway.signals import stopped_by_signals

__all__ = ["ArchiveDaemon"]

_FIRST_WAIT: Final = 1.0


class _StopRun(Exception):  # noqa: N818 - no error: a run keeps what it has read, as after any exception
    """Ends a run from its progress callback."""


class ArchiveDaemon:
    """Keeps the archives of a configuration up to date.

    Args:
        config: The configuration.
        on_http: Called with the address of the HTTP server, when it listens.

    Attributes:
        states: States of the pipelines, in the order of the configuration.
    """

    def __init__(self, config: ArchiveConfig, on_http: Callable[[str], None] = lambda _: None) -> None:
        self._config = config
        self._on_http = on_http
        self._stopping = threading.Event()
        self._slots = asyncio.Semaphore(config.max_active)
        self.states: Final = [PipelineState(one.name) for one in config.pipelines]

    async def run(self, *, once: bool = False) -> bool:
        """Run until SIGINT or SIGTERM; a second signal has its default effect on the program.

        Runs under way finish their files first, for at most ``stop_timeout`` seconds. What is not finished
        by then is read again by the next run.

        Args:
            once: Run each pipeline once, and return.

        Returns:
            True if all runs ended in time after the signal. With ``once``, also no pipeline failed, and the
            signal came after the last one had begun.
        """
        with stopped_by_signals() as stop:
            async with serving_http(self._monitor, self._config.http, self._on_http):
                notify("READY=1", f"STATUS=archiving {len(self.states)} streams")
                tasks = [
                    asyncio.create_task(self._follow(pipeline, state, stop, once=once), name=pipeline.name)
                    for pipeline, state in zip(self._config.pipelines, self.states, strict=True)
                ]
                stopped = asyncio.create_task(stop.wait(), name="stop")
                work: asyncio.Future[list[None]] = asyncio.gather(*tasks)
                ends: list[asyncio.Future[Any]] = [work, stopped]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                ended = True
                if stop.is_set():
                    ended = await self._finish(work)
                else:
                    stopped.cancel()
                    await work
                return ended and (not once or all(one.runs and not one.failures for one in self.states))

    def _monitor(self) -> Any:
        from liftenvelope.archive._monitoring import ArchiveMonitor

        return ArchiveMonitor(self.states)

    async def _finish(self, work: asyncio.Future[list[None]]) -> bool:
        self._stopping.set()
        timeout = self._config.stop_timeout
        logged(StopRequested(sum(one.is_running for one in self.states), timeout))
        notify("STOPPING=1")
        await asyncio.wait([work], timeout=timeout)
        if work.done():
            await work
            return True
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        return False

    async def _follow(
        self, pipeline: PipelineConfig, state: PipelineState, stop: asyncio.Event, *, once: bool
    ) -> None:
        backoff = Backoff(first=_FIRST_WAIT, longest=self._config.retry_wait)
        while not stop.is_set():
            async with self._slots:
                if stop.is_set():
                    return
                error = await self._attempt(pipeline, state)
            wait = pipeline.interval if error is None else backoff.next()
            if error is None:
                backoff.reset()
            elif once:
                logged(OnlyRunFailed(pipeline.name, error))
            else:
                logged(PipelineFailed(pipeline.name, error, state.failures_in_a_row, wait))
            if once:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait)

    async def _attempt(self, pipeline: PipelineConfig, state: PipelineState) -> str | None:
        """Run a pipeline once; return the text of its error."""
        state.begun()
        failed_before = state.failures_in_a_row
        try:
            await self._write(pipeline, state)
            await self._maintain(pipeline, state)
        except _StopRun:
            state.succeeded(time.time())  # its files are complete, and counted by nobody
            return None
        except (LiftEnvelopeError, OSError) as exc:
            text = without_secrets(exc) or type(exc).__name__
        except Exception as exc:  # noqa: BLE001 - a defect, here or in a library, must not end the other pipelines
            text = f"unexpected {type(exc).__name__}: {without_secrets(exc)} ({_place_of(exc)})"
        else:
            state.succeeded(time.time())
            if failed_before:
                logged(PipelineRecovered(pipeline.name, failed_before))
            return None
        state.failed(text)
        return text

    async def _write(self, pipeline: PipelineConfig, state: PipelineState) -> None:
        began = time.monotonic()
        done = await _in_thread(
            lambda: pipeline.write(lambda seen: self._note(state, seen), state.wrote_dead_letters),
            pipeline.name,
        )
        seconds, is_table = time.monotonic() - began, isinstance(done, TableWritten)
        state.wrote(done.rows, 0 if is_table else done.bytes)
        if done.rows and is_table:
            logged(PipelineCommitted(pipeline.name, done.rows, done.commits, seconds))
        elif done.rows:
            logged(PipelineWrote(pipeline.name, done.rows, done.bytes, len(done.files), seconds))

    async def _maintain(self, pipeline: PipelineConfig, state: PipelineState) -> None:
        """Do the upkeep of a table that has rows, if it is due and the daemon is not about to stop."""
        wanted = pipeline.maintenance
        if wanted is None or not state.rows or self._stopping.is_set():
            return
        if time.monotonic() < state.maintained_at + wanted.interval:
            return
        began = time.monotonic()
        age = await _in_thread(lambda: pipeline.maintain(wanted), pipeline.name)
        state.maintained_at = began - age
        if not age:
            logged(PipelineMaintained(pipeline.name, time.monotonic() - began))

    def _note(self, state: PipelineState, seen: Progress) -> None:
        state.pending = (seen.total or seen.done) - seen.done
        if self._stopping.is_set() and state.pending:
            raise _StopRun


def _place_of(error: Exception) -> str:
    """Return the file, line and function that raised an error."""
    *_, place = traceback.extract_tb(error.__traceback__)
    return f"{place.filename}, line {place.lineno}, in {place.name}"


async def _in_thread(work: Callable[[], Any], name: str) -> Any:
    """Call a function in a thread that does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def end(set_result: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            set_result(value)

    def call() -> None:
        try:
            found = work()
        except BaseException as exc:  # noqa: BLE001 - raised by the future
            outcome: tuple[Callable[[Any], None], Any] = (result.set_exception, exc)
        else:
            outcome = (result.set_result, found)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, *outcome)

    threading.Thread(target=call, name=f"pipeline {name}", daemon=True).start()
    return await result
