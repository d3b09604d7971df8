"""What clusters of servers of the Liftbridge API have in common, of whatever make the servers are."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from liftenvelope.errors import UsageError
from liftenvelope.testing._admin import LiftbridgeAdmin
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import Managed
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
    """One server of a cluster. For one thread at a time.

    Attributes:
        id: Its id in the cluster, as in the metadata.
    """

    #: What its errors call it.
    kind: ClassVar[str]
    #: What its log says, any of it, when it ended only because the machine was too busy.
    too_busy: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, node_id: str, folder: Path, nats_url: Callable[[], str], tls: ssl.SSLContext | None, log: str
    ) -> None:
        self.id = node_id
        self._folder = folder
        # Asked for at each start: our own NATS has no port before its first.
        self._nats_url = nats_url
        self._tls = tls
        self._port: int | None = None
        # Other ports to try. None once it has been ready on one, because it keeps that port.
        self._other_ports = _PORT_TRIES - 1
        # Starts to repeat because the machine was too busy.
        self._busy_tries = 0
        self._process = ServerProcess(folder, log)
        folder.mkdir()

    @property
    def port(self) -> int:
        """Where it listens. It stays the same however often it is started."""
        if self._port is None:
            raise UsageError("the server has no port before it is started")
        return self._port

    @property
    def address(self) -> str:
        """Its ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id, None when it is not running."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.is_running

    def start(self, *, wait: bool = True, timeout: float = 120.0) -> None:
        """Start it, on the same port and with the same data as before.

        Args:
            wait: Whether to return only when it answers. A Liftbridge server does so once the cluster has a
                leader: with two of three nodes down it has none, so the first of them to come back must not
                be waited for.
            timeout: Seconds to wait.

        Raises:
            ServerStartError: It ended, or was not ready in time; the message ends with its log.
            UsageError: It is running.
        """
        if self._port is None:
            self._port = free_port()
        self._busy_tries = _BUSY_TRIES - 1
        self._launch()
        if wait:
            self.wait_ready(time.monotonic() + timeout)

    def stop(self) -> int | None:
        """Have it stop cleanly (SIGINT); return its exit status. Its data stay."""
        return self._process.stop()

    def kill(self) -> int | None:
        """Kill it with SIGKILL, and wait until it has gone. Its data stay as they are.

        With one replica, messages that a Liftbridge server acknowledged in the last seconds can be invisible
        to subscribers after a restart, until one more message is published to their partition.
        """
        return self._process.kill()

    def close(self) -> None:
        """Stop it for good, and give up its port. The cluster does so at its end."""
        self._process.stop()
        self._process.log()
        if self._port is not None:
            release_port(self._port)

    def log(self) -> str:
        """Return all that it has logged, since its first start."""
        return self._process.log()

    def wait_ready(self, deadline: float) -> None:
        """Wait until it listens and answers, at most until ``deadline`` of :func:`time.monotonic`.

        Another server that answers on its port is not taken for it.

        Raises:
            ServerStartError: It ended, or did not answer in time; the message ends with its log.
        """
        while not (self._process.listens_on(self.port) and is_serving(self.address, self._tls)):
            if not self.is_running:
                self._start_again()
            if time.monotonic() > deadline:
                raise self.failure("was not ready in time")
            time.sleep(_POLL_INTERVAL)
        self._other_ports = 0

    def failure(self, what: str) -> ServerStartError:
        """Return the error that says so, with the end of the log."""
        return ServerStartError(f"{self.kind} ({self.id}) {what}. Its log:\n{self._process.log_tail()}")

    def _start_again(self) -> None:
        """Start again: elsewhere, if its port was taken meanwhile; in the same place on a busy machine."""
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
        """Write its configuration, and start the process."""


NodeT = TypeVar("NodeT", bound=ServerNode)


class ServerCluster(LiftbridgeAdmin, Managed, Generic[NodeT]):
    """Servers on one NATS server. For one thread at a time.

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
        """``host:port`` of each server."""
        return [node.address for node in self.nodes]

    @property
    def nats(self) -> NatsServer | None:
        """Its NATS server, None when only a URL was given."""
        return None if isinstance(self._nats, str) else self._nats

    @property
    def nats_url(self) -> str:
        """The URL of its NATS server."""
        if isinstance(self._nats, str):
            return self._nats
        assert self._nats is not None
        return self._nats.url

    @property
    def is_running(self) -> bool:
        """Whether every server is running."""
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        """Start every server that is not running, its own NATS first, and wait until all is ready.

        Ready means that every server answers and knows the others; of Liftbridge also that it keeps cursors.

        Raises:
            ServerStartError: That was not so in time; the message ends with the logs.
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
            self._wait_for_nodes(deadline)  # one may have served, and ended before all was ready
            if time.monotonic() > deadline:
                failures = (str(node.failure("was not ready in time")) for node in self.nodes)
                raise ServerStartError("\n\n".join(failures))
            time.sleep(_POLL_INTERVAL)

    def stop(self) -> None:
        """Have every server stop cleanly. NATS goes on, and the data stay."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Kill every server with SIGKILL. NATS goes on, and the data stay as they are."""
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        """Stop every server, its own NATS as well, and remove their data. The logs can still be read."""
        for node in self.nodes:
            node.close()
        if self._own_nats is not None:
            self._own_nats.close()
        remove_folder(self._folder)

    def log(self) -> str:
        """Return all that the servers have logged, one after the other."""
        return "\n".join(f"--- {node.id} ---\n{node.log()}" for node in self.nodes)

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
        """Whether all that is needed works, once every server answers."""
