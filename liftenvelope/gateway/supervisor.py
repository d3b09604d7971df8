"""Runs several gateways as worker processes of one program: ``liftenvelope serve --workers N``.

One Python process uses one core. Each worker is an ordinary gateway with an id and a port of its own, so N
workers are N brokers of one Liftbridge cluster. The supervisor parses the settings, runs the embedded
nats-server and the HTTP server, starts a worker again when it ends, and stops all of them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import about
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import UsageError
from liftenvelope.gateway._monitoring.drops import read_drop, read_fault
from liftenvelope.gateway._workers.slot import Program, WorkerSlot
from liftenvelope.gateway.http_endpoint import NO_PAGES, Monitored, Pages, http_address, serving_http
from liftenvelope.gateway.limits import Limits
from liftenvelope.gateway.notify import feeding_watchdog, notify, notify_reloading
from liftenvelope.gateway.serving import Serving, embedded_nats, has_ended
from liftenvelope.gateway.signals import stopped_by_signals
from liftenvelope.rpc.address import Address, parse_address

if TYPE_CHECKING:
    from liftenvelope.gateway.embedded import EmbeddedNats

__all__ = ["Program", "check_ports", "supervise"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_HIGHEST_PORT: Final = 65_535
#: Seconds to wait until a worker has read its files again, or has taken a line of the log.
_PATIENCE: Final = 10.0


def check_ports(serving: Serving, count: int) -> None:
    """Check that each worker can have a port of its own.

    Args:
        serving: Settings of the gateways. Worker 1 has the ports that they name, the others the next ones.
        count: Number of workers.

    Raises:
        UsageError: There are not so many ports, or the HTTP server has one of them.
    """
    listen = Address(serving.gateway.get("host", "127.0.0.1"), serving.gateway.get("port", 0))
    advertise = serving.gateway.get("advertise")
    ports = {"port": listen.port, "advertise": 0 if advertise is None else parse_address(advertise).port}
    for name, port in ports.items():
        if port + count - 1 > _HIGHEST_PORT:
            most = _HIGHEST_PORT - count + 1
            text = f"{name} must be at most {most} for {count} workers, which take a port each, got {port}"
            raise about(UsageError(text), name)
    if serving.http is None or not listen.port:
        return
    http = http_address(serving.http)
    if http.host == listen.host and listen.port <= http.port < listen.port + count:
        last = listen.port + count - 1
        text = f"http must not be one of the ports of the workers, {listen.port} to {last}, got {http.port}"
        raise about(UsageError(text), "http")


async def supervise(
    serving: Serving,
    count: int,
    program: Program,
    on_ready: Callable[[list[str], str], None],
    on_http: Callable[[str], None] = lambda _: None,
    pages: Pages = NO_PAGES,
) -> None:
    """Serve with several workers until SIGINT or SIGTERM, then drain all. A second signal ends all at once.

    SIGHUP makes all workers read the certificates and the policy file again. If systemd started the program
    with ``Type=notify``, it is told when all workers serve, reload and stop. If this process is killed, its
    workers and its nats-server end at once.

    Args:
        serving: Settings of the gateways. Worker 1 has the port and the advertised port that they name, and
            the others the next ones; with port 0 each takes a free port. A worker's id is the one that they
            name, with the number of the worker.
        count: Number of workers.
        program: Program of a worker: it runs :class:`~liftenvelope.gateway.worker.Worker`.
        on_ready: Called when all workers serve clients, with their addresses and the URL of their NATS server
            without user and password.
        on_http: Called before that with the address of the HTTP server, when it listens.
        pages: Further pages of the HTTP server.

    Raises:
        TransportError: A worker can't be started, or does not start again; NATS can't be reached or started,
            or has ended; or the HTTP server can't listen.
        UsageError: A setting is invalid.
    """
    check_ports(serving, count)
    workers = _Workers(serving, count, program)
    with stopped_by_signals() as stop:
        async with (
            feeding_watchdog(),
            serving_http(workers.monitor, serving.http, on_http, pages),
            embedded_nats(serving) as own,
            workers.running(own) as failed,
        ):
            ended = _Ends(stop, failed, own)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, workers.reload)
            if await ended.before(workers.all_started()):
                url = serving.nats_url or (own.url if own is not None else "")
                on_ready(workers.addresses(), without_secrets(url))
                workers.is_told = True
                notify("READY=1", workers.status())
                await ended.before(asyncio.get_running_loop().create_future())
            notify("STOPPING=1", f"STATUS=draining, for at most {serving.drain} s")


class _Ends:
    """Waits for the first reason to stop.

    Args:
        stop: Set by a signal.
        failed: Completed with an error if a worker can't be kept running.
        own: The embedded nats-server, or None.
    """

    def __init__(self, stop: asyncio.Event, failed: asyncio.Future[None], own: EmbeddedNats | None) -> None:
        self._stop = stop
        self._failed = failed
        self._own = own

    async def before(self, event: Any) -> bool:
        """Return True if the event comes first, and False if a signal does.

        Raises:
            TransportError: A worker or the nats-server has ended before.
        """
        awaited, stop = asyncio.ensure_future(event), asyncio.ensure_future(self._stop.wait())
        server = None if self._own is None else asyncio.ensure_future(self._own.wait())
        waiting = {awaited, stop} if server is None else {awaited, stop, server}
        try:
            await asyncio.wait({*waiting, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                return False
            if server is not None and server.done():
                raise has_ended(server.result())
            if self._failed.done():
                self._failed.result()
            return True
        finally:
            for future in waiting:
                future.cancel()


class _Workers:
    """All workers of a supervisor.

    Args:
        serving: Settings of the gateways.
        count: Number of workers.
        program: Program of a worker.

    Attributes:
        is_told: True once systemd knows that the service is ready; it is told of changes from then on.
    """

    def __init__(self, serving: Serving, count: int, program: Program) -> None:
        self._serving = serving
        self._count = count
        self._program = program
        self._slots: list[WorkerSlot] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_told = False

    def monitor(self) -> Monitored:
        """Return the health and the metrics of all workers."""
        from liftenvelope.gateway._workers.monitor import WorkersMonitor

        return WorkersMonitor(self._slots, self._serving.gateway.get("limits") or Limits())

    @asynccontextmanager
    async def running(self, own: EmbeddedNats | None) -> AsyncIterator[asyncio.Future[None]]:
        """Run the workers while the block runs, then drain them.

        Args:
            own: The embedded nats-server, or None.

        Yields:
            A future that completes with an error if a worker can't be kept running.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for number, serving in enumerate(self._settings(own), 1):
            slot = WorkerSlot(number, serving, self._program, self._changed, self._any_serves)
            self._slots.append(slot)
        keeping = [asyncio.create_task(slot.keep(), name=f"worker {slot.number}") for slot in self._slots]
        for task in keeping:
            task.add_done_callback(partial(_pass_error, failed))
        if own is not None:
            own.on_line = self._pass_line
        try:
            yield failed
        finally:
            self.is_told = False
            failed.cancel()
            stopping = zip(self._slots, keeping, strict=True)
            await asyncio.gather(*(slot.stop(task, self._serving.drain) for slot, task in stopping))

    def _settings(self, own: EmbeddedNats | None) -> Iterator[Serving]:
        """Yield the settings of each worker."""
        serving = self._serving
        shared: dict[str, Any] = {"http": None}
        if own is not None:
            shared |= {"data_dir": None, "nats_url": own.url, "connect": {**serving.connect, **own.login}}
        given = serving.gateway
        name = given.get("id") or f"gateway-{secrets.token_hex(4)}"
        for number in range(self._count):
            gateway = {**given, "id": f"{name}-{number + 1}"}
            if given.get("port"):
                gateway["port"] = given["port"] + number
            if (advertise := given.get("advertise")) is not None:
                host, port = parse_address(advertise)
                gateway["advertise"] = str(Address(host, port + number))
            yield replace(serving, **shared, gateway=gateway)

    async def all_started(self) -> None:
        """Wait until all workers serve clients."""
        for slot in self._slots:
            await slot.started.wait()

    def _any_serves(self) -> bool:
        return any(slot.address for slot in self._slots)

    def addresses(self) -> list[str]:
        """Return the addresses of the workers that serve clients."""
        return [slot.address for slot in self._slots if slot.address]

    def status(self) -> str:
        """Return the state of the workers in the words of systemd."""
        serving = self.addresses()
        if len(serving) == self._count:
            return f"STATUS=serving on {', '.join(serving)}"
        return (
            f"STATUS={len(serving)} of {self._count} workers serve, on {', '.join(serving) or 'no address'}"
        )

    def _changed(self) -> None:
        if self.is_told:
            notify(self.status())

    def reload(self) -> None:
        """Make all workers read the certificates and the policy file again."""
        self._start(self._reload())

    async def _reload(self) -> None:
        notify_reloading()
        told = [(slot, slot.process) for slot in self._slots]
        answers = await asyncio.gather(*(slot.tell("reload", _PATIENCE) for slot in self._slots))
        for (slot, process), answer in zip(told, answers, strict=True):
            # A worker that does not run, or has ended meanwhile, reads the files when it starts.
            if process is not None and process.is_running and not answer:
                text = "worker %d did not reload its certificates and policy within %.0f s"
                _log.warning(text, slot.number, _PATIENCE, extra={"worker": slot.number})
        if self.is_told:
            notify("READY=1", self.status())

    def _pass_line(self, line: str) -> None:
        """Pass on a line of the nats-server's log: a fault to all workers, a warning to one that logs it."""
        serving = [slot for slot in self._slots if slot.address]
        if read_fault(line) is None:
            serving = serving[:1] if read_drop(line) is not None else []
        for slot in serving:
            self._start(slot.tell("read", _PATIENCE, line=line))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work, name="order to workers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _pass_error(failed: asyncio.Future[None], task: asyncio.Task[None]) -> None:
    if task.cancelled() or failed.done():
        return
    if (error := task.exception()) is not None:
        failed.set_exception(error)
