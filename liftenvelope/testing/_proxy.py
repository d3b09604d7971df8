"""TCP proxy that injects network faults."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from liftenvelope.errors import UsageError
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import Managed
from liftenvelope.testing._ports import LOOPBACK, free_port, release_port
from liftenvelope.testing._relay import DIRECTIONS, Direction, Relay, RelayLane, family_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["FaultProxy"]

_Which: TypeAlias = Literal["both", "to_server", "to_client"]
_T = TypeVar("_T")
_PORT_TRIES: Final = 5


class FaultProxy(Managed):
    """A TCP proxy in front of a server, to test how a client handles network faults.

    The proxy listens on a free port of the loopback interface and relays each connection to the target. Its
    methods take effect before they return, for existing and new connections. They are thread-safe, and fast
    enough to be called from a coroutine.

    A direction is ``"to_server"``, ``"to_client"`` or ``"both"``.

    Args:
        target: The server: ``host:port``, a URL such as ``nats://host:port``, with or
            without a login, or a host.
        port: Port of the server, if ``target`` is only a host.
        local_address: IP address of this machine from which to connect to the server, such as ``127.0.0.2``,
            to play several clients. Default: chosen by the system.

    Raises:
        UsageError: ``target`` or ``local_address`` is malformed.

    Example:
        >>> from liftenvelope.testing import run_nats_server
        >>> with run_nats_server() as server, FaultProxy(server.url) as proxy:
        ...     proxy.delay(0.05)
        ...     url = f"nats://{proxy.address}"  # for the client under test
        ...     proxy.cut()
        ...     proxy.connections
        0
    """

    def __init__(self, target: str, port: int | None = None, *, local_address: str | None = None) -> None:
        if local_address is not None and not _is_ip_address(local_address):
            raise UsageError(f"local_address must be an IP address, got {local_address!r}")
        self._local_address = local_address
        if port is None:
            # The proxy carries the login, and does not need it.
            self._target = parse_address(target.rpartition("://")[2].rpartition("@")[2].rstrip("/"))
        else:
            self._target = parse_address(str(Address(target, port)))
        self._port = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._relay: Relay | None = None

    @property
    def target(self) -> str:
        """Address of the server as ``host:port``."""
        return str(self._target)

    @property
    def port(self) -> int:
        """Port on which the proxy listens."""
        if not self._port:
            raise UsageError("the proxy has no port yet; start it first")
        return self._port

    @property
    def address(self) -> str:
        """Address of the proxy as ``host:port``, for the client to connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        """Number of connections accepted so far."""
        return self._do(lambda relay: relay.connections)

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return self._do(lambda relay: relay.open_connections)

    @property
    def bytes_to_server(self) -> int:
        """Bytes passed on to the server."""
        return self._do(lambda relay: relay.lanes["to_server"].forwarded)

    @property
    def bytes_to_client(self) -> int:
        """Bytes passed on to clients."""
        return self._do(lambda relay: relay.lanes["to_client"].forwarded)

    def delay(self, seconds: float, direction: _Which = "both") -> None:
        """Delay all traffic by ``seconds``, as a long wire would; 0 ends the delay."""
        if not 0 <= seconds < float("inf"):
            raise UsageError(f"seconds must be at least 0 and finite, got {seconds!r}")
        self._for_lanes(direction, lambda lane: lane.hold(seconds))

    def stall(self, direction: _Which = "both") -> None:
        """Stop passing data on. Connections stay open and new ones are accepted, but nothing arrives."""
        self._for_lanes(direction, lambda lane: lane.open.clear())

    def resume(self, direction: _Which = "both") -> None:
        """End a stall and pass on the data held back."""
        self._for_lanes(direction, lambda lane: lane.open.set())

    def truncate(self, after_bytes: int, direction: Direction = "to_client") -> None:
        """Pass on ``after_bytes`` more bytes in one direction, then cut the connection that carried the last.

        The receiver gets exactly these bytes and then the end of the stream; the sender gets a reset. The
        bytes of all connections count together. With 0, the next bytes are dropped and their connection is
        cut. Only one connection is cut; later connections are unaffected.
        """
        if after_bytes < 0:
            raise UsageError(f"after_bytes must be at least 0, got {after_bytes!r}")
        if direction not in DIRECTIONS:
            raise UsageError(f"direction must be {' or '.join(DIRECTIONS)}, got {direction!r}")
        self._for_lanes(direction, lambda lane: lane.limit(after_bytes))

    def cut(self) -> None:
        """Reset every open connection on both sides. New connections are accepted."""
        self._await(self._running().cut())

    def refuse(self) -> None:
        """Refuse new connections, as if no server were there. Open connections continue."""
        self._do(lambda relay: relay.refuse())

    def accept(self) -> None:
        """Accept connections again after :meth:`refuse`."""
        self._do(lambda relay: relay.listen((LOOPBACK, self.port)))

    def start(self) -> None:
        """Start listening.

        Raises:
            UsageError: The proxy has been started before.
            ServerStartError: No port could be bound, or ``local_address`` is no address of this machine.
        """
        if self._thread is not None:
            raise UsageError("the proxy has been started before; create a new one")
        if self._local_address is not None:
            try:
                socket.create_server((self._local_address, 0), family=family_of(self._local_address)).close()
            except OSError as exc:
                raise ServerStartError(f"the proxy can't connect from {self._local_address}: {exc}") from exc
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="fault-proxy", daemon=True)
        self._thread.start()
        started.wait()
        for other_ports in reversed(range(_PORT_TRIES)):
            self._port = free_port()
            try:
                self._do(lambda relay: relay.listen((LOOPBACK, self._port)))
            except OSError as exc:
                # Another program took the port after it was found to be free.
                release_port(self._port)
                if not other_ports:
                    raise ServerStartError(f"the proxy can't listen on port {self._port}: {exc}") from exc
            else:
                return

    def close(self) -> None:
        """Reset every connection and stop listening. Further calls do nothing."""
        if self._loop is None or self._relay is None or self._thread is None:
            return
        self.refuse()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._relay = None
        release_port(self._port)

    def _run(self, started: threading.Event) -> None:
        """Run the proxy's thread."""
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(self._begin, started)
            self._loop.run_forever()

    def _begin(self, started: threading.Event) -> None:
        self._relay = Relay(self._target, self._local_address)
        started.set()

    def _running(self) -> Relay:
        if self._relay is None:
            raise UsageError("the proxy is not running; start it first")
        return self._relay

    def _await(self, work: Coroutine[None, None, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _do(self, action: Callable[[Relay], _T]) -> _T:
        relay = self._running()

        async def act() -> _T:
            return action(relay)

        return self._await(act())

    def _for_lanes(self, direction: _Which, action: Callable[[RelayLane], None]) -> None:
        if direction not in ("both", *DIRECTIONS):
            raise UsageError(f"direction must be both, {' or '.join(DIRECTIONS)}, got {direction!r}")

        def act(relay: Relay) -> None:
            for lane in relay.lanes.values():
                if direction in ("both", lane.direction):
                    action(lane)

        self._do(act)


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
