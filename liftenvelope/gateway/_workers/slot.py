"""Keeps one worker running: starts it, watches it, and starts it again when it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftenvelope._backoff import Backoff
from liftenvelope._deadlines import Deadline
from liftenvelope.errors import TransportError
from liftenvelope.gateway._monitoring.readiness import NOT_STARTED
from liftenvelope.gateway._workers.process import WorkerProcess
from liftenvelope.rpc.address import parse_address

if TYPE_CHECKING:
    from liftenvelope.gateway.serving import Serving

__all__ = ["Program", "WorkerSlot"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Runs in a row that end before the worker serves clients, after which the supervisor gives up.
_TRIES: Final = 5
#: Least and most seconds before the next run, without jitter.
_FIRST: Final = 0.5
_LONGEST: Final = 10.0
#: Seconds between two questions for the state: before the worker serves, and later.
_LOOK_AT_START: Final = 0.05
_LOOK: Final = 0.5
#: Seconds to wait for an answer, and questions without one after which a worker is stuck and is killed.
_SILENT: Final = 20.0
_ASKED: Final = 3
#: Seconds in addition to those of the drain, for the rest of the end.
_ENDING: Final = 30.0


class Program(NamedTuple):
    """The program of a worker.

    Attributes:
        command: The program and its arguments.
        settings: Settings of the program itself, such as those of its log.
    """

    command: list[str]
    settings: dict[str, Any]


class WorkerSlot:
    """One of the workers of a supervisor, over all its runs.

    Args:
        number: Number of the worker, from 1.
        serving: Settings of its gateway.
        program: Program of the worker.
        on_change: Called when the worker begins or ends to serve clients.
        others_serve: Returns True while another worker serves clients.

    Attributes:
        number: Number of the worker.
        address: Address at which it serves clients; empty while it does not.
        reasons: Why it is not ready, by condition, as it said last.
        restarts: Number of its runs that have ended by themselves.
        process: The present run; None between two of them.
    """

    def __init__(
        self,
        number: int,
        serving: Serving,
        program: Program,
        on_change: Callable[[], None],
        others_serve: Callable[[], bool],
    ) -> None:
        self.number = number
        self._serving = serving
        self._program = program
        self._on_change = on_change
        self._others_serve = others_serve
        self._backoff = Backoff(first=_FIRST, longest=_LONGEST, jitter=0.0)
        self._is_stopping = False
        self._port = 0
        self._served = False
        self.address = ""
        self.reasons: dict[str, str] = {"running": NOT_STARTED}
        self.restarts = 0
        self.process: WorkerProcess | None = None
        #: Set when the worker serves clients for the first time.
        self.started = asyncio.Event()

    async def keep(self) -> None:
        """Run the worker until :meth:`stop`.

        Raises:
            TransportError: The first run has ended before it served clients, or 5 runs in a row have while no
                other worker serves any.
        """
        while True:
            error = await self._run()
            if self._is_stopping:
                return
            self.restarts += 1
            await asyncio.sleep(self._pause(error))

    async def _run(self) -> str:
        """Run the worker once; return why it has ended."""
        self._served = False
        try:
            # The number is for those who read a list of processes.
            command = [*self._program.command, str(self.number)]
            process = self.process = await WorkerProcess.start(command, self._first())
        except TransportError as exc:
            return str(exc)
        try:
            await self._watch(process)
        finally:
            # The watch was cancelled, or the worker is stuck. A process that has ended is not harmed.
            status = await process.kill()
            self.process = None
            self._note("", {"running": NOT_STARTED})
        if not self._served and not self._serving.gateway.get("port"):
            # Another program may have taken the free port of the run before: the next run takes any.
            self._port = 0
        return process.error or f"worker {self.number} has ended with status {status}"

    def _first(self) -> dict[str, Any]:
        serving = asdict(self._serving)
        if self._port:
            # The next run listens on the same port: clients know it.
            serving["gateway"]["port"] = self._port
        return {"settings": {**self._program.settings, "worker": self.number}, "serving": serving}

    def _pause(self, error: str) -> float:
        """Return the seconds before the next run.

        Raises:
            TransportError: There is to be no next run.
        """
        if not self.started.is_set():
            raise TransportError(error)
        # An error would end the program, and with it workers that still have what this one lacks, such as the
        # policy from before a bad change.
        if self._backoff.failures >= _TRIES and not self._others_serve():
            text = f"worker {self.number} has ended {_TRIES} times in a row before it served clients"
            raise TransportError(f"{text}, the last time with: {error}")
        pause = self._backoff.next()
        text = "worker %d has ended, and starts again in %.1f s: %s"
        _log.warning(text, self.number, pause, error, extra={"worker": self.number})
        return pause

    async def _watch(self, process: WorkerProcess) -> None:
        """Ask for the state until the process has ended."""
        ended = asyncio.ensure_future(process.wait())
        try:
            while not ended.done():
                state = await self._state(process)
                self._note(state["address"], state["reasons"])
                await asyncio.wait([ended], timeout=_LOOK if self.address else _LOOK_AT_START)
        except TransportError:
            await ended
        except TimeoutError:
            process.error = f"it did not answer for {_SILENT * _ASKED:.0f} s and was killed"
        finally:
            ended.cancel()

    async def _state(self, process: WorkerProcess) -> dict[str, Any]:
        """Ask for the state, several times: if this process stood still, the answer was just not read yet."""
        for _ in range(_ASKED - 1):
            with suppress(TimeoutError):
                return await process.ask("state", _SILENT)
        return await process.ask("state", _SILENT)

    def _note(self, address: str, reasons: dict[str, str]) -> None:
        changed = bool(address) != bool(self.address)
        self.address, self.reasons = address, reasons
        if address:
            self._port = parse_address(address).port
            self._served = True
            self._backoff.reset()
            self.started.set()
        if changed:
            self._on_change()

    async def tell(self, do: str, timeout: float, **more: Any) -> dict[str, Any]:
        """Give an order; return the answer, empty if there is none in time or no run."""
        if self.process is not None:
            with suppress(TransportError, TimeoutError):
                return await self.process.ask(do, timeout, **more)
        return {}

    async def stop(self, keeping: asyncio.Task[None], drain: float) -> None:
        """Stop the worker: drain it if it serves clients.

        Args:
            keeping: Task of :meth:`keep`, which has ended afterwards.
            drain: Seconds that it may drain.
        """
        self._is_stopping = True
        deadline = Deadline(drain + _ENDING)
        if self.address:
            await self.tell("stop", deadline.left)
            _, waiting = await asyncio.wait([keeping], timeout=deadline.left)
            if waiting:
                text = "worker %d has not stopped in %.0f s and is killed"
                _log.warning(text, self.number, deadline.timeout, extra={"worker": self.number})
        keeping.cancel()
        await asyncio.wait([keeping])
