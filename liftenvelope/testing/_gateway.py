"""Runs one gateway, or a cluster of gateways, for tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import liftenvelope
from liftenvelope._version import __version__
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.testing._cluster import ServerCluster, ServerNode
from liftenvelope.testing._nats import NatsServer, run_nats_server
from liftenvelope.testing._ports import LOOPBACK
from liftenvelope.testing._readiness import brokers_are_known

if TYPE_CHECKING:
    import ssl

__all__ = ["GatewayCluster", "GatewayNode", "run_gateway"]

_MOST_NODES: Final = 9
#: Arguments of Gateway that are files.
_FILES: Final = ("nats_log", "policy_file")
#: Timeouts in seconds, short so that tests detect lost members soon.
_TIMEOUTS: Final = {"consumer_timeout": 3.0, "coordinator_timeout": 3.0}


def run_gateway(
    nodes: int = 1,
    *,
    nats_url: str | None = None,
    nats_server: NatsServer | None = None,
    config: Mapping[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    start_timeout: float = 120.0,
) -> GatewayCluster:
    """Return a cluster of gateways on the loopback interface; ``with`` or ``async with`` starts it.

    The cluster has the interface of :func:`run_liftbridge`. Each gateway is a process of its own, and the
    streams are in the NATS server. The processes end with this Python process at the latest.

    Args:
        nodes: Number of gateways, 1 to 9.
        nats_url: URL of a running NATS server with JetStream. By default the cluster starts its own.
        nats_server: The same as ``nats_url``, as the object of :func:`run_nats_server`.
        config: Arguments of :class:`liftenvelope.gateway.Gateway` other than ``tls``, and PEM files:
            ``tls_cert``, ``tls_key``, ``tls_client_ca``. Files are str or Path. ``limits`` is a
            :class:`liftenvelope.gateway.Limits`, or a mapping of its fields.
        tls: TLS context for reaching gateways that have a ``tls_cert``.
        start_timeout: Seconds until the whole cluster must be ready.

    Raises:
        UsageError: ``nodes`` is out of range, both ``nats_url`` and ``nats_server`` are given, or a value of
            ``config`` can't be passed to another process.
        MissingExtraError: The ``[gateway]`` extra is not installed.
        ServerStartError: On entering: the cluster did not start.

    Example:
        >>> with run_gateway() as cluster:
        ...     cluster.create_stream("orders")
        ...     cluster.partition_metadata("orders").newestOffset
        -1
    """
    if not 1 <= nodes <= _MOST_NODES:
        raise UsageError(f"nodes must be 1 to {_MOST_NODES}, got {nodes!r}")
    if nats_url is not None and nats_server is not None:
        raise UsageError("nats_url and nats_server exclude each other; leave one of them out")
    plain = {name: _plain(name, value) for name, value in (config or {}).items()}
    return GatewayCluster(nodes, nats_server if nats_url is None else nats_url, plain, tls, start_timeout)


def _plain(name: str, value: Any) -> Any:
    """Return an argument as a value of JSON. A relative path is that of this process, not of the gateway.

    Raises:
        UsageTypeError: JSON has no such value.
    """
    try:
        if value is not None and (name.startswith("tls_") or name in _FILES):
            return str(Path(value).absolute())
        found = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        json.dumps(found)
    except (TypeError, ValueError) as exc:
        text = f"{name} of config must be a value of JSON, a file or Limits, got {type(value).__name__}"
        raise UsageTypeError(text) from exc
    return found


class GatewayNode(ServerNode):
    """One gateway of a cluster. Not thread-safe.

    Attributes:
        id: Id in the cluster, as in the metadata.
    """

    kind = "the gateway"

    def __init__(
        self,
        node_id: str,
        folder: Path,
        nats_url: Callable[[], str],
        config: Mapping[str, Any],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(node_id, folder, nats_url, tls, "gateway.log")
        self._config = config

    def _launch(self) -> None:
        config = dict(self._config)
        files = {name: config.pop(name) for name in list(config) if name.startswith("tls_")}
        gateway = {"id": self.id, "host": LOOPBACK, "port": self.port, **_TIMEOUTS, **config}
        serving = {"nats_url": self._nats_url(), "gateway": gateway, **files}
        path = self._folder / "gateway.json"
        path.write_text(json.dumps(serving, indent=1), "utf-8")
        # Makes this process's copy of the package importable, installed or not.
        env = {"PYTHONPATH": str(Path(liftenvelope.__file__).parent.parent)}
        self._process.start([sys.executable, "-m", "liftenvelope.gateway", str(path)], env)


class GatewayCluster(ServerCluster[GatewayNode]):
    """Gateways on one NATS server, made by :func:`run_gateway`. Not thread-safe.

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
        super().__init__(nats, _own_nats, tls, start_timeout)
        self.nodes = [
            GatewayNode(f"node{number}", self._folder / f"node{number}", lambda: self.nats_url, config, tls)
            for number in range(1, size + 1)
        ]

    @property
    def version(self) -> str:
        """Version of liftenvelope."""
        return __version__

    def _is_ready(self) -> bool:
        return all(brokers_are_known([address], self._ids, self._tls) for address in self.addresses)


def _own_nats(folder: Path) -> NatsServer:
    from liftenvelope.gateway.embedded import BUFFERED

    return run_nats_server(config={"jetstream": {"store_dir": str(folder / "jetstream"), **BUFFERED}})
