"""Shared base of clusters that serve the Liftbridge API: Liftbridge servers and gateways."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from liftenvelope.errors import UsageError
from liftenvelope.testing._admin import LiftbridgeAdmin
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import ManagedServer
from liftenvelope.testing._ports import LOOPBACK, free_port, release_port
from liftenvelope.testing._process import ServerProcess, make_folder, remove_folder
from liftenvelope.testing._readiness import is_serving

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from liftenvelope.testing._nats import NatsServer

__all__ = ["ServerCluster", "ServerNode"]

_PORT_TRIES: Final = 3
_BUSY_TRIES: Final = 3
_POLL_INTERVAL: Final = 0.05
_ADDRESS_IN_USE: Final = "address already in use"


class ServerNode(ABC):
    """One server of a cluster. Not thread-safe.

    Attributes:
        id: Id in the cluster, as in the metadata.
    """

    #: Name in error messages.
    kind: ClassVar[str]
    #: Log texts of a server that ended because the machine was too busy; any of them counts.
    too_busy: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, node_id: str, folder: Path, nats_url: Callable[[], str], tls: ssl.SSLContext | None, log: str
    ) -> None:
        self.id = node_id
        self._folder = folder
        # A function, because the cluster's own NATS server has no port before its first start.
        self._nats_url = nats_url
        self._tls = tls
        self._port: int | None = None
        # Number of other ports to try. 0 once the server was ready on a port, which it then keeps.
        self._other_ports = _PORT_TRIES - 1
        # Number of starts to repeat if the machine is too busy.
        self._busy_tries = 0
        self._process = ServerProcess(folder, log)
        folder.mkdir()

    def __repr__(self) -> str:
        place = "without a port" if self._port is None else f"on {self.address}"
        return f"<{type(self).__name__} {self.id} {place}, {'running' if self.is_running else 'not running'}>"

    @property
    def port(self) -> int:
        """Port of the server. It stays the same across restarts."""
        if self._port is None:
            raise UsageError("the server has no port yet; start it first")
        return self._port

    @property
    def address(self) -> str:
        """Address as ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id; None if the server is not running."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._process.is_running

    def start(self, *, wait: bool = True, timeout: float = 120.0) -> None:
        """Start the server on the same port and with the same data as before.

        Args:
            wait: Wait until the server answers. A Liftbridge server answers only while the cluster has a
                leader. If two of three nodes are down, start the first one with ``wait=False``.
            timeout: Seconds to wait.

        Raises:
            ServerStartError: The server ended, or was not ready in time. The message ends with the log.
            UsageError: The server is running.
        """
        if self._port is None:
            self._port = free_port()
        self._busy_tries = _BUSY_TRIES - 1
        self._launch()
        if wait:
            self.wait_ready(time.monotonic() + timeout)

    def stop(self) -> int | None:
        """Stop the server cleanly (SIGINT) and return its exit status. The data are kept."""
        return self._process.stop()

    def kill(self) -> int | None:
        """Kill the server with SIGKILL and wait for its end. The data are kept as they are.

        With one replica, messages that a Liftbridge server acknowledged in the last seconds can be invisible
        to subscribers after a restart, until one more message is published to the partition.
        """
        return self._process.kill()

    def close(self) -> None:
        """Stop the server for good and release its port. The cluster calls this when it closes."""
        self._process.stop()
        self._process.log()
        if self._port is not None:
            release_port(self._port)

    def log(self) -> str:
        """Return the whole log since the first start."""
        return self._process.log()

    def wait_ready(self, deadline: float) -> None:
        """Wait until the server listens and answers, at most until ``deadline`` of :func:`time.monotonic`.

        Another server that answers on the port does not count.

        Raises:
            ServerStartError: The server ended, or did not answer in time. The message ends with the log.
        """
        while not (self._process.listens_on(self.port) and is_serving(self.address, self._tls)):
            if not self.is_running:
                self._start_again()
            if time.monotonic() > deadline:
                raise self.failure("was not ready in time")
            time.sleep(_POLL_INTERVAL)
        self._other_ports = 0

    def failure(self, what: str) -> ServerStartError:
        """Return an error for a failed start that ends with the end of the log."""
        return ServerStartError(f"{self.kind} ({self.id}) {what}. Its log:\n{self._process.log_tail()}")

    def failures(self) -> list[str]:
        """Describe the server if it has ended without being told to; otherwise the list is empty."""
        ended = f"ended with status {self._process.returncode}"
        return [str(self.failure(ended))] if self._process.has_failed else []

    def _start_again(self) -> None:
        """Start again, on another port if the port was taken; give up unless the machine was too busy."""
        tail = self._process.log_tail()
        if _ADDRESS_IN_USE in tail and self._other_ports:
            self._other_ports -= 1
            release_port(self.port)
            self._port = free_port()
        elif self._busy_tries and any(words in tail for words in self.too_busy):
            self._busy_tries -= 1
        else:
            raise self.failure(f"ended with status {self._process.returncode}")
        self._launch()

    @abstractmethod
    def _launch(self) -> None:
        """Write the server's configuration and start the process."""


NodeT = TypeVar("NodeT", bound=ServerNode)


class ServerCluster(LiftbridgeAdmin, ManagedServer, Generic[NodeT]):
    """Servers on one NATS server. Not thread-safe.

    Attributes:
        nodes: The servers.
    """

    nodes: list[NodeT]

    def __init__(
        self,
        nats: NatsServer | str | None,
        make_nats: Callable[[Path], NatsServer],
        tls: ssl.SSLContext | None,
        start_timeout: float,
    ) -> None:
        self._start_timeout = start_timeout
        self._folder = make_folder()
        self._own_nats = make_nats(self._folder) if nats is None else None
        self._nats = self._own_nats or nats
        self._tls = tls
        self._have_answered = False

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of every server."""
        return [node.address for node in self.nodes]

    @property
    def nats(self) -> NatsServer | None:
        """The NATS server; None if only its URL is known."""
        return None if isinstance(self._nats, str) else self._nats

    @property
    def nats_url(self) -> str:
        """URL of the NATS server."""
        if isinstance(self._nats, str):
            return self._nats
        assert self._nats is not None
        return self._nats.url

    @property
    def is_running(self) -> bool:
        """True while every server is running."""
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        """Start every server that is not running, and the cluster's own NATS; wait until all are ready.

        The cluster is ready when every server answers and knows the others. Liftbridge must also keep
        cursors.

        Raises:
            ServerStartError: The cluster was not ready in time. The message ends with the logs.
        """
        deadline = time.monotonic() + self._start_timeout
        if self._own_nats is not None and not self._own_nats.is_running:
            self._own_nats.start()
        for node in self.nodes:
            if not node.is_running:
                node.start(wait=False)
        self._have_answered = False
        self._wait_for_nodes(deadline)
        while not self._is_ready():
            self._wait_for_nodes(deadline)  # one may have answered, and ended before the others were ready
            if time.monotonic() > deadline:
                failures = (str(node.failure("was not ready in time")) for node in self.nodes)
                raise ServerStartError("\n\n".join(failures))
            time.sleep(_POLL_INTERVAL)

    def stop(self) -> None:
        """Stop every server cleanly. NATS keeps running, and the data are kept."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Kill every server with SIGKILL. NATS keeps running, and the data are kept as they are."""
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        """Stop every server and the cluster's own NATS, and remove their data. Logs can still be read."""
        for node in self.nodes:
            node.close()
        if self._own_nats is not None:
            self._own_nats.close()
        remove_folder(self._folder)

    def log(self) -> str:
        """Return the logs of all servers, one after another."""
        return "\n".join(f"--- {node.id} ---\n{node.log()}" for node in self.nodes)

    def failures(self) -> list[str]:
        """Describe each server that has ended without being told to, with the end of its log."""
        own = [] if self._own_nats is None else self._own_nats.failures()
        return [failure for node in self.nodes for failure in node.failures()] + own

    def _wait_for_nodes(self, deadline: float) -> None:
        for node in self.nodes:
            if not node.is_running or not self._have_answered:
                node.wait_ready(deadline)
        self._have_answered = True

    @property
    def _ids(self) -> set[str]:
        return {node.id for node in self.nodes}

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return True if the cluster works, once every server answers."""
