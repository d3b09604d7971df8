"""A gateway, or several as one cluster, for tests."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import liftenvelope
from liftenvelope.errors import UsageError
from liftenvelope.testing._admin import LiftbridgeAdmin
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import Managed
from liftenvelope.testing._nats import NatsServer, run_nats_server
from liftenvelope.testing._ports import LOOPBACK, free_port
from liftenvelope.testing._process import ServerProcess, make_folder, remove_folder
from liftenvelope.testing._readiness import is_serving, known_brokers

if TYPE_CHECKING:
    import ssl

__all__ = ["GatewayCluster", "GatewayNode", "run_gateway"]

_MOST_NODES: Final = 9
_PORT_TRIES: Final = 3
_POLL_INTERVAL: Final = 0.05
#: Short, so that tests need not wait for who is gone.
_TIMEOUTS: Final = {"consumer_timeout": 3.0, "coordinator_timeout": 3.0}
_ADDRESS_IN_USE: Final = "address already in use"


def run_gateway(
    nodes: int = 1,
    *,
    nats_url: str | None = None,
    nats_server: NatsServer | None = None,
    config: Mapping[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    start_timeout: float = 60.0,
) -> GatewayCluster:
    """Return a cluster of gateways on the loopback interface, to be started by ``with`` or ``async with``.

    It looks like that of :func:`run_liftbridge`. Each gateway is a process of its own; the streams are in the
    NATS server. The processes never outlive this Python process.

    Args:
        nodes: How many, 1 to 9.
        nats_url: A NATS server with JetStream that runs already. By default the cluster starts one of its
            own.
        nats_server: The same, as the object of :func:`run_nats_server`.
        config: Arguments of :class:`liftenvelope.gateway.Gateway`, and the names of PEM files: ``tls_cert``,
            ``tls_key``, ``tls_client_ca``.
        tls: How to reach gateways that ``config`` gives a ``tls_cert``.
        start_timeout: Seconds within which all of it must be ready.

    Raises:
        UsageError: ``nodes`` is another number, or both ``nats_url`` and ``nats_server`` are given.
        MissingExtraError: The ``[gateway]`` extra is not installed.
        ServerStartError: On entering: it did not start.

    Example:
        >>> with run_gateway() as cluster:
        ...     cluster.create_stream("orders")
        ...     cluster.partition_metadata("orders").newestOffset
        -1
    """
    if not 1 <= nodes <= _MOST_NODES:
        raise UsageError(f"nodes={nodes!r}: expected 1 to {_MOST_NODES}")
    if nats_url is not None and nats_server is not None:
        raise UsageError("nats_url and nats_server exclude each other")
    return GatewayCluster(
        nodes, nats_server if nats_url is None else nats_url, config or {}, tls, start_timeout
    )


class GatewayNode:
    """One gateway of a cluster. For one thread at a time.

    Attributes:
        id: Its id in the cluster, as in the metadata.
    """

    def __init__(
        self,
        node_id: str,
        folder: Path,
        nats_url: Callable[[], str],
        config: Mapping[str, Any],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.id = node_id
        self._folder = folder
        # Asked for at each start: our own NATS has no port before its first.
        self._nats_url = nats_url
        self._config = config
        self._tls = tls
        self._port: int | None = None
        # How many other ports to try; none once it has answered on one, for that is promised to stay.
        self._other_ports = _PORT_TRIES - 1
        self._process = ServerProcess(folder, "gateway.log")
        folder.mkdir()

    @property
    def port(self) -> int:
        """Where it listens. It stays the same however often it is started."""
        if self._port is None:
            raise UsageError("the gateway has no port before it is started")
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

    def start(self, *, wait: bool = True, timeout: float = 60.0) -> None:
        """Start it, on the same port as before.

        Args:
            wait: Whether to return only when it answers.
            timeout: Seconds to wait.

        Raises:
            ServerStartError: It ended, or was not ready in time; the message ends with its log.
            UsageError: It is running.
        """
        if self._port is None:
            self._port = free_port()
        self._launch()
        if wait:
            self.wait_ready(time.monotonic() + timeout)

    def stop(self) -> int | None:
        """Have it stop cleanly (SIGINT); return its exit status."""
        return self._process.stop()

    def kill(self) -> int | None:
        """Kill it with SIGKILL, and wait until it has gone."""
        return self._process.kill()

    def log(self) -> str:
        """Return all that it has logged, since its first start."""
        return self._process.log()

    def wait_ready(self, deadline: float) -> None:
        """Wait until it answers, at most until ``deadline`` of :func:`time.monotonic`.

        Raises:
            ServerStartError: It ended, or did not answer in time; the message ends with its log.
        """
        while not is_serving(self.address, self._tls):
            if not self.is_running:
                self._start_elsewhere()
            if time.monotonic() > deadline:
                raise self.failure("was not ready in time")
            time.sleep(_POLL_INTERVAL)
        self._other_ports = 0

    def failure(self, what: str) -> ServerStartError:
        """Return the error that says so, with the end of the log."""
        return ServerStartError(f"the gateway ({self.id}) {what}. Its log:\n{self._process.log_tail()}")

    def _start_elsewhere(self) -> None:
        """Start again on another port, if this one was taken since it was found to be free."""
        if _ADDRESS_IN_USE not in self._process.log_tail() or not self._other_ports:
            raise self.failure(f"ended with status {self._process.returncode}")
        self._other_ports -= 1
        self._port = free_port()
        self._launch()

    def _launch(self) -> None:
        config = dict(self._config)
        files = {name: config.pop(name) for name in list(config) if name.startswith("tls_")}
        gateway = {"id": self.id, "host": LOOPBACK, "port": self.port, **_TIMEOUTS, **config}
        serving = {"nats_url": self._nats_url(), "gateway": gateway, **files}
        path = self._folder / "gateway.json"
        path.write_text(json.dumps(serving, indent=1), "utf-8")
        # The package need not be installed where this process found it.
        env = {"PYTHONPATH": str(Path(liftenvelope.__file__).parent.parent)}
        self._process.start([sys.executable, "-m", "liftenvelope.gateway", str(path)], env)


class GatewayCluster(LiftbridgeAdmin, Managed):
    """Gateways on one NATS server, made by :func:`run_gateway`. For one thread at a time.

    Attributes:
        nodes: The gateways.
    """

    def __init__(
        self,
        size: int,
        nats: NatsServer | str | None,
        config: Mapping[str, Any],
        tls: ssl.SSLContext | None,
        start_timeout: float,
    ) -> None:
        from liftenvelope.gateway.embedded import BUFFERED

        self._start_timeout = start_timeout
        self._folder = make_folder()
        own = {"jetstream": {"store_dir": str(self._folder / "jetstream"), **BUFFERED}}
        self._own_nats = run_nats_server(config=own) if nats is None else None
        self._nats = self._own_nats or nats
        self._tls = tls
        self.nodes = [
            GatewayNode(f"node{number}", self._folder / f"node{number}", lambda: self.nats_url, config, tls)
            for number in range(1, size + 1)
        ]

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each gateway."""
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
        """Whether every gateway is running."""
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        """Start every gateway that is not running, its own NATS first, and wait until all is ready.

        Raises:
            ServerStartError: That was not so in time; the message ends with the logs.
        """
        deadline = time.monotonic() + self._start_timeout
        if self._own_nats is not None and not self._own_nats.is_running:
            self._own_nats.start()
        for node in self.nodes:
            if not node.is_running:
                node.start(wait=False)
        for node in self.nodes:
            node.wait_ready(deadline)
        while any(known_brokers([address], self._tls) < self._ids for address in self.addresses):
            if time.monotonic() > deadline:
                failures = (str(node.failure("was not ready in time")) for node in self.nodes)
                raise ServerStartError("\n\n".join(failures))
            time.sleep(_POLL_INTERVAL)

    @property
    def _ids(self) -> set[str]:
        return {node.id for node in self.nodes}

    def stop(self) -> None:
        """Have every gateway stop cleanly. NATS goes on."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Kill every gateway with SIGKILL. NATS goes on."""
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        """Stop every gateway, its own NATS as well, and remove the data. The logs can still be read."""
        for node in self.nodes:
            node.stop()
            node.log()
        if self._own_nats is not None:
            self._own_nats.close()
        remove_folder(self._folder)

    def log(self) -> str:
        """Return all that the gateways have logged, one after the other."""
        return "\n".join(f"--- {node.id} ---\n{node.log()}" for node in self.nodes)
