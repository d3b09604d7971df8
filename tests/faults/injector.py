"""Carries out the faults of a plan in a thread, and heals everything at the end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import nats

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import GatewayNode
from tests.faults.plan import Fault
from tests.faults.scenes import BALLAST, Process, Scene

__all__ = ["Injector"]

#: Seconds without any progress after which the next fault comes all the same.
_IMPATIENCE: Final = 15.0
_TURN: Final = 0.01
#: Above this many bytes, JetStream's storage is full enough; the rest follows in small messages.
_PIECE: Final = 512 * 1024
_MOST_PIECES: Final = 1_000


class Injector:
    """Waits until enough is acked for the next fault, and carries it out.

    Args:
        scene: The servers.
        faults: What happens, in order.
        progress: Returns the fraction of the goal that is acked.
        own: Processes of the path; they may come and go.

    Attributes:
        done: Kinds of faults that were carried out.
        error: What went wrong with the servers, None for nothing.
    """

    def __init__(
        self,
        scene: Scene,
        faults: tuple[Fault, ...],
        progress: Callable[[], float],
        own: dict[str, Process],
    ) -> None:
        self._scene = scene
        self._faults = faults
        self._progress = progress
        self._own = own
        self._ending = threading.Event()
        self._healed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="injector", daemon=True)
        self.done: Counter[str] = Counter()
        self.error: BaseException | None = None

    @property
    def is_healed(self) -> bool:
        """True if all faults have ended and all servers run."""
        return self._healed.is_set()

    def end(self) -> None:
        """Heal now, and wait for it."""
        self._ending.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        try:
            for fault in self._faults:
                if not self._await(fault.after):
                    break
                self._inject(fault)
                self.done[fault.kind] += 1
        except BaseException as exc:  # noqa: BLE001 - raised by end()
            self.error = exc
        finally:
            self._healed.set()

    def _await(self, after: float) -> bool:
        """Wait until a fraction of the goal is acked; return False where the run is over before."""
        seen, since = self._progress(), time.monotonic()
        while (now := self._progress()) < after:
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > _IMPATIENCE:
                break
            if self._ending.wait(_TURN):
                return False
        return True

    def _inject(self, fault: Fault) -> None:
        if fault.target in self._scene.wires:
            self._spoil(fault)
            return
        process = self._own.get(fault.target) or self._scene.processes.get(fault.target)
        if process is None or process.pid is None:
            return
        {
            "kill": self._kill,
            "stop": self._stop,
            "descriptors": self._starve,
            "full": self._fill,
            "disk": self._fill if self._scene.disk is None else self._fill_disk,
        }[fault.kind](process, process.pid, fault.seconds)

    def _kill(self, process: Process, pid: int, seconds: float) -> None:
        process.kill()
        self._ending.wait(seconds)
        process.start()

    def _stop(self, process: Process, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            self._ending.wait(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _starve(self, process: Process, pid: int, seconds: float) -> None:
        """Leave no free file descriptors, and make clients ask for new ones."""
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, limits[1]))
        for proxies in self._scene.wires.values():
            for proxy in proxies:
                proxy.cut()
        self._ending.wait(seconds)
        if process.pid is not None:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        if not isinstance(process, GatewayNode):
            # A store that could not open a file may refuse to write until its server is started again.
            process.kill()
            process.start()

    def _fill(self, process: Process, pid: int, seconds: float) -> None:
        asyncio.run(_fill_storage(self._scene.direct_nats_urls[0]))
        self._ending.wait(seconds)
        asyncio.run(_empty_storage(self._scene.direct_nats_urls[0]))

    def _fill_disk(self, process: Process, pid: int, seconds: float) -> None:
        assert self._scene.disk is not None
        ballast = self._scene.disk / BALLAST
        try:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(_PIECE)):
                    pass  # until no space is left
            self._ending.wait(seconds)
        finally:
            ballast.unlink()
        # nats-server goes on refusing to write until it is started again.
        process.kill()
        process.start()

    def _spoil(self, fault: Fault) -> None:
        for proxy in (proxies := self._scene.wires[fault.target]):
            match fault.kind:
                case "cut":
                    proxy.cut()
                case "stall":
                    proxy.stall()
                case "delay":
                    proxy.delay(0.05)
                case "truncate":
                    proxy.truncate(1_000 + int(100 * fault.seconds))
                case "refuse":
                    proxy.refuse()
                    proxy.cut()
        if fault.kind not in ("cut", "truncate"):
            self._ending.wait(fault.seconds)
        for proxy in proxies:
            match fault.kind:
                case "stall":
                    proxy.resume()
                case "delay":
                    proxy.delay(0)
                case "refuse":
                    proxy.accept()


async def _fill_storage(url: str) -> None:
    """Store messages until the server has no room; small ones at the end, so that nothing fits."""
    async with await nats.connect(url) as nc, JetStream(nc, timeout=60) as js:
        await js.create_stream(StreamConfig(name=BALLAST, subjects=(BALLAST,)))
        size = _PIECE
        for _ in range(_MOST_PIECES):
            try:
                await js.publish(BALLAST, bytes(size), timeout=30)
            except LiftEnvelopeError:
                size //= 16
                if not size:
                    return
        raise AssertionError("JetStream's storage did not fill up")


async def _empty_storage(url: str) -> None:
    async with await nats.connect(url) as nc, JetStream(nc, timeout=60) as js:
        await js.delete_stream(BALLAST)
