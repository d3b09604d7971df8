"""One run of a worker's process, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import count
from typing import Any, Self

from liftenvelope.errors import TransportError
from liftenvelope.gateway._workers.frames import Frame, as_frame, receive_frame
from liftenvelope.gateway.notify import VARIABLES

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """A process that runs :class:`~liftenvelope.gateway.worker.Worker`, with its pipes.

    The process is in a session of its own: Ctrl-C on a terminal reaches the supervisor alone, which lets the
    worker drain.

    Args:
        process: The process.

    Attributes:
        error: The worker's own reason for its end; empty if it told none.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._ids = count()
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._reading = asyncio.create_task(self._read(process.stdout), name="answers of a worker")
        self.error = ""

    @classmethod
    async def start(cls, command: list[str], first: Frame) -> Self:
        """Start a worker.

        Args:
            command: The program and its arguments.
            first: First message to the worker: its settings.

        Raises:
            TransportError: The system can't start a process.
        """
        variables = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=variables,
            )
        except OSError as exc:
            raise TransportError(f"can't start a worker: {exc}") from exc
        worker = cls(process)
        worker._send(first)
        return worker

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until its answers have ended."""
        return not self._reading.done()

    async def ask(self, do: str, timeout: float, **more: Any) -> Frame:
        """Send an order and return the answer.

        Args:
            do: The order.
            timeout: Seconds to wait.
            more: Further fields of the order.

        Raises:
            TimeoutError: The worker did not answer in time.
            TransportError: The worker has ended.
        """
        number = next(self._ids)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            if not self.is_running:
                raise TransportError("the worker has ended")
            self._send({"id": number, "do": do, **more})
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes with the answer.
            async with asyncio.timeout(timeout):
                found: Frame = await answer
                return found
        finally:
            del self._asked[number]

    async def wait(self) -> int:
        """Wait until the process has ended and its answers are read; return the exit status."""
        status = await self._process.wait()
        await asyncio.wait([self._reading])
        return status

    async def kill(self) -> int:
        """End the process at once, unless it has ended; return the exit status."""
        with suppress(ProcessLookupError):
            self._process.kill()
        return await self.wait()

    def _take(self, answer: Frame) -> None:
        self.error = answer.get("error", self.error)
        asked = self._asked.get(answer.get("id", -1))
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def _send(self, message: Frame) -> None:
        self._input.write(as_frame(message))

    async def _read(self, output: asyncio.StreamReader) -> None:
        try:
            while (answer := await receive_frame(output)) is not None:
                self._take(answer)
        except ValueError as exc:
            # Where the next answer begins is not known any more.
            self.error = f"it has written what is no answer: {exc}"
            with suppress(ProcessLookupError):
                self._process.kill()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(TransportError("the worker has ended"))
