"""A Liftbridge server, or a cluster of them, for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError
from liftenvelope.testing._admin import LiftbridgeAdmin
from liftenvelope.testing._binaries import find_liftbridge
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import Managed
from liftenvelope.testing._nats import NatsServer, run_nats_server
from liftenvelope.testing._ports import LOOPBACK, free_port
from liftenvelope.testing._process import ServerProcess, make_folder, remove_folder
from liftenvelope.testing._readiness import cursors_work, is_serving, known_brokers

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from liftenvelope.testing._binaries import LiftbridgeBinary

__all__ = ["LiftbridgeCluster", "LiftbridgeNode", "run_liftbridge"]

_SIZES: Final = (1, 3)
_PORT_TRIES: Final = 3
_POLL_INTERVAL: Final = 0.05
_ADDRESS_IN_USE: Final = "address already in use"
# A server panics when it can't make its own streams within 10 s of being elected: the machine is too busy.
_TOO_BUSY: Final = "raft operation timed out"
_BUSY_TRIES: Final = 3

# Cursors, and with them consumer groups, need a partition. The short times are for tests of expiry.
_DEFAULTS: Final[dict[str, object]] = {
    "cursors.stream.partitions": 1,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "3s",
    "groups.coordinator.timeout": "3s",
    "activity.stream.enabled": True,
}
# A dead leader is replaced in 3 to 4 s instead of 18. They are tuned together: a short lag time with the
# default idle wait would throw live followers out.
_CLUSTER_DEFAULTS: Final[dict[str, object]] = {
    "clustering.replica.max.leader.timeout": "3s",
    "clustering.replica.max.lag.time": "3s",
    "clustering.replica.max.idle.wait": "1s",
    "clustering.replica.fetch.timeout": "1s",
}


def run_liftbridge(
    nodes: int = 1,
    *,
    nats_url: str | None = None,
    nats_server: NatsServer | None = None,
    config: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    start_timeout: float = 60.0,
) -> LiftbridgeCluster:
    """Return a Liftbridge cluster on the loopback interface, to be started by ``with`` or ``async with``.

    Cursors, consumer groups and the activity stream are on, with short timeouts; telemetry is off. Data are
    in temporary folders that are removed at the end. The servers never outlive this Python process.

    Args:
        nodes: 1 or 3.
        nats_url: A NATS server that runs already. By default the cluster starts one of its own.
        nats_server: The same, as the object of :func:`run_nats_server`.
        config: More of the servers' configuration, the same for each node, such as
            ``{"clustering": {"replication.max.bytes": 65536}}``. The names are those of Liftbridge's
            configuration file, nested or with dots; what stands here goes before what is set by default.
        env: Environment variables for the servers, such as ``LIFTBRIDGE_ENCRYPTION_KEY``. Of the environment
            of this process they see next to nothing.
        tls: How to reach servers that ``config`` gives a ``tls.key`` and a ``tls.cert``.
        start_timeout: Seconds within which all of it must be ready.

    Raises:
        UsageError: ``nodes`` is another number, or both ``nats_url`` and ``nats_server`` are given.
        MissingExtraError: The ``[client]`` extra is not installed.
        ServerStartError: On entering: there is no server program, or it did not start.

    Example:
        >>> with run_liftbridge() as cluster:
        ...     cluster.create_stream("orders")
        ...     cluster.partition_metadata("orders").newestOffset
        -1
    """
    if nodes not in _SIZES:
        raise UsageError(f"nodes={nodes!r}: expected 1 or 3")
    if nats_url is not None and nats_server is not None:
        raise UsageError("nats_url and nats_server exclude each other")
    return LiftbridgeCluster(
        nodes,
        nats_server if nats_url is None else nats_url,
        _flatten(config or {}),
        env or {},
        tls,
        start_timeout,
    )


class LiftbridgeNode:
    """One server of a cluster. For one thread at a time.

    Attributes:
        id: Its id in the cluster, as in the metadata.
    """

    def __init__(
        self,
        node_id: str,
        folder: Path,
        nats_url: Callable[[], str],
        config: Mapping[str, object],
        env: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.id = node_id
        self._folder = folder
        # Asked for at each start: our own NATS has no port before its first.
        self._nats_url = nats_url
        self._config = config
        self._env = env
        self._tls = tls
        self._port: int | None = None
        # How many other ports to try; none once it has answered on one, for that is promised to stay.
        self._other_ports = _PORT_TRIES - 1
        self._busy_tries = _BUSY_TRIES - 1
        self._process = ServerProcess(folder, "liftbridge.log")
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

    def start(self, *, wait: bool = True, timeout: float = 60.0) -> None:
        """Start it, on the same port and with the same data as before.

        Args:
            wait: Whether to return only when it answers. It does so once the cluster has a leader: with two
                of three nodes down it has none, so the first of them to come back must not be waited for.
            timeout: Seconds to wait.

        Raises:
            ServerStartError: It ended, or was not ready in time; the message ends with its log.
            UsageError: It is running.
        """
        if self._port is None:
            self._port = free_port()
        self._launch(find_liftbridge())
        if wait:
            self.wait_ready(time.monotonic() + timeout)

    def stop(self) -> int | None:
        """Have it stop cleanly (SIGINT); return its exit status. Its data stay."""
        return self._process.stop()

    def kill(self) -> int | None:
        """Kill it with SIGKILL, and wait until it has gone. Its data stay as they are.

        With one replica, messages that were acknowledged in the last seconds can be invisible to subscribers
        after a restart, until one more message is published to their partition.
        """
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
                self._start_again()
            if time.monotonic() > deadline:
                raise self.failure("was not ready in time")
            time.sleep(_POLL_INTERVAL)
        self._other_ports = 0

    def failure(self, what: str) -> ServerStartError:
        """Return the error that says so, with the end of the log."""
        return ServerStartError(f"Liftbridge ({self.id}) {what}. Its log:\n{self._process.log_tail()}")

    def _start_again(self) -> None:
        """Start again: elsewhere, if its port was taken meanwhile; in the same place on a busy machine."""
        tail = self._process.log_tail()
        if _ADDRESS_IN_USE in tail and self._other_ports:
            self._other_ports -= 1
            self._port = free_port()
        elif _TOO_BUSY in tail and self._busy_tries:
            self._busy_tries -= 1
        else:
            raise self.failure(f"ended with status {self._process.returncode}")
        self._launch(find_liftbridge())

    def _launch(self, binary: LiftbridgeBinary) -> None:
        own = {
            "listen": self.address,
            "data.dir": str(self._folder / "data"),
            "nats.servers": [self._nats_url()],
        }
        config = {**own, **self._config}
        if binary.has_telemetry:
            config.setdefault("telemetry.enabled", False)
        path = self._folder / "liftbridge.yaml"
        # JSON is YAML as well.
        path.write_text(json.dumps(config, indent=1), "utf-8")
        self._process.start([str(binary.path), "-c", str(path)], self._env)


class LiftbridgeCluster(LiftbridgeAdmin, Managed):
    """A Liftbridge cluster, made by :func:`run_liftbridge`. For one thread at a time.

    Attributes:
        nodes: Its servers.
    """

    def __init__(
        self,
        size: int,
        nats: NatsServer | str | None,
        config: Mapping[str, object],
        env: Mapping[str, str],
        tls: ssl.SSLContext | None,
        start_timeout: float,
    ) -> None:
        self._start_timeout = start_timeout
        self._folder = make_folder()
        self._own_nats = run_nats_server() if nats is None else None
        self._nats = self._own_nats or nats
        self._config = {**_DEFAULTS, **(_CLUSTER_DEFAULTS if size > 1 else {}), **config}
        self._env = env
        self._tls = tls
        ids = [f"node{number}" for number in range(1, size + 1)]
        self.nodes = [self._node(node_id, ids) for node_id in ids]

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
    def version(self) -> str:
        """What the server program says its version is, such as ``v1.9.0``."""
        return find_liftbridge().version

    @property
    def is_running(self) -> bool:
        """Whether every server is running."""
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        """Start every server that is not running, its own NATS first, and wait until all is ready.

        Ready means that every server answers, knows the others, and keeps cursors.

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
        while not self._is_ready():
            for node in self.nodes:
                if not node.is_running:  # it served, and ended before all was ready
                    node.wait_ready(deadline)
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
            node.stop()
            node.log()
        if self._own_nats is not None:
            self._own_nats.close()
        remove_folder(self._folder)

    def log(self) -> str:
        """Return all that the servers have logged, one after the other."""
        return "\n".join(f"--- {node.id} ---\n{node.log()}" for node in self.nodes)

    def _node(self, node_id: str, ids: list[str]) -> LiftbridgeNode:
        clustering: dict[str, object] = {
            "clustering.server.id": node_id,
            # Clusters can share a NATS server, if their internal subjects differ.
            "clustering.namespace": self._folder.name,
        }
        if len(ids) == 1:
            clustering["clustering.raft.bootstrap.seed"] = True
        else:
            clustering["clustering.raft.bootstrap.peers"] = ids
        config = {**clustering, **self._config}
        return LiftbridgeNode(
            node_id, self._folder / node_id, lambda: self.nats_url, config, self._env, self._tls
        )

    def _is_ready(self) -> bool:
        if known_brokers(self.addresses, self._tls) < {node.id for node in self.nodes}:
            return False
        return not self._config["cursors.stream.partitions"] or cursors_work(self.addresses, self._tls)


def _flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return a configuration without nesting: with dots in its names, as the server itself sees it."""
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
