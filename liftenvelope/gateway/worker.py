"""A worker of ``liftenvelope serve --workers``: a gateway in a process of its own, led by a supervisor.

The end of standard input means that the supervisor is gone, even if it was killed. The process then ends at
once, whatever its event loop does, so that no worker outlives its supervisor and the ports are free.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway._gateway import Gateway
from liftenvelope.gateway._monitoring.readiness import NOT_STARTED
from liftenvelope.gateway._workers.frames import Frame, as_frame, metrics_to, read_frame
from liftenvelope.gateway.serving import Serving, reload, serve

__all__ = ["Worker"]

_INPUT, _OUTPUT, _ERRORS = range(3)
#: Exit status of a worker whose supervisor is gone.
_ORPHANED: Final = 3
#: Seconds to wait for the metrics that only JetStream knows.
_REFRESH: Final = 2.0


class Worker:
    """The worker of this process. What the process prints goes to standard error from now on.

    Attributes:
        settings: What the supervisor has said about the program, apart from the gateway, such as its log.

    Raises:
        SystemExit: The supervisor is gone.
    """

    def __init__(self) -> None:
        self._out = os.dup(_OUTPUT)
        os.dup2(_ERRORS, _OUTPUT)
        first = read_frame(_INPUT)
        if first is None:
            raise SystemExit(_ORPHANED)
        self.settings: dict[str, Any] = first["settings"]
        self._given: dict[str, Any] = first["serving"]
        self._gateway: Gateway | None = None
        self._serving: Serving | None = None
        # Frames to write; None ends the thread that writes them.
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> int:
        """Serve until the supervisor or a signal stops it; return the exit status."""
        writing = Thread(target=self._write, name="answers", daemon=True)
        writing.start()
        try:
            asyncio.run(self._serve())
        except LiftEnvelopeError as exc:
            self._frames.put(as_frame({"error": str(exc)}))
            return 1
        finally:
            self._frames.put(None)
            writing.join()
        return 0

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        Thread(target=self._listen, args=(loop,), name="supervisor", daemon=True).start()
        self._serving = Serving.from_json(self._given)
        await serve(self._serving, lambda *_: None, on_gateway=self._take_gateway)

    def _take_gateway(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass orders to the event loop. This thread never waits for it."""
        while (order := read_frame(_INPUT)) is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take_order, order)
        os._exit(_ORPHANED)

    def _take_order(self, order: Frame) -> None:
        task = asyncio.create_task(self._answer(order), name="order of the supervisor")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, order: Frame) -> None:
        self._frames.put(as_frame({"id": order["id"], **await self._done(order)}))

    async def _done(self, order: Frame) -> Frame:
        gateway, serving = self._gateway, self._serving
        if order["do"] == "stop":
            signal.raise_signal(signal.SIGTERM)
        elif gateway is None or serving is None:
            return {"address": "", "reasons": {"running": NOT_STARTED}, "metrics": []}
        elif order["do"] == "state":
            reasons = dict(gateway.readiness().reasons)
            return {"address": "" if "running" in reasons else gateway.address, "reasons": reasons}
        elif order["do"] == "metrics":
            await gateway.refresh_metrics(timeout=_REFRESH)
            return {"metrics": metrics_to(gateway.metrics())}
        elif order["do"] == "reload":
            reload(serving, gateway)
        elif order["do"] == "read":
            gateway.read_server_log(order["line"])
        return {}

    def _write(self) -> None:
        with suppress(OSError):  # the supervisor is gone: see _listen()
            while (data := self._frames.get()) is not None:
                while data:
                    data = data[os.write(self._out, data) :]
