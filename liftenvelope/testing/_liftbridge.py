"""Runs a Liftbridge server, or a cluster of them, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError
from liftenvelope.testing._binaries import find_liftbridge
from liftenvelope.testing._cluster import ServerCluster, ServerNode
from liftenvelope.testing._nats import NatsServer, run_nats_server
from liftenvelope.testing._readiness import brokers_are_known, cursors_work, leader_works

if TYPE_CHECKING:
    import ssl
    from pathlib import Path


__all__ = ["LiftbridgeCluster", "LiftbridgeNode", "run_liftbridge"]

_SIZES: Final = (1, 3)

# Cursors, and therefore consumer groups, need a partition. The timeouts are short for tests of expiry.
_DEFAULTS: Final[dict[str, object]] = {
    "cursors.stream.partitions": 1,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "3s",
    "groups.coordinator.timeout": "3s",
    "activity.stream.enabled": True,
}
# A dead leader is replaced in 3 to 4 s instead of 18. The values depend on each other: a short lag time with
# the default idle wait would expel live followers.
_CLUSTER_DEFAULTS: Final[dict[str, object]] = {
    "clustering.replica.max.leader.timeout": "3s",
    "clustering.replica.max.lag.time": "3s",
    "clustering.replica.max.idle.wait": "1s",
    "clustering.replica.fetch.timeout": "1s",
}
# Settings that let a server identify its clients, without which no policy can allow anything.
_POLICY_NEEDS: Final = ("tls.key", "tls.cert", "tls.client.auth.ca")
# Casbin's model of a permission list, as in Liftbridge's documentation.
_POLICY_MODEL: Final = """\
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""


def run_liftbridge(
    nodes: int = 1,
    *,
    nats_url: str | None = None,
    nats_server: NatsServer | None = None,
    config: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    policy: str | None = None,
    start_timeout: float = 120.0,
) -> LiftbridgeCluster:
    """Return a Liftbridge cluster on the loopback interface; ``with`` or ``async with`` starts it.

    Cursors, consumer groups and the activity stream are on, with short timeouts. Telemetry is off. Data are
    in temporary folders that are removed at the end. The servers end with this Python process at the latest.

    Args:
        nodes: Number of servers, 1 or 3.
        nats_url: URL of a running NATS server. By default the cluster starts its own.
        nats_server: The same as ``nats_url``, as the object of :func:`run_nats_server`.
        config: Further settings, the same for every node, such as ``{"clustering": {"replication.max.bytes":
            65536}}``. The names are those of Liftbridge's configuration file, nested or dotted. They override
            the defaults of this function.
        env: Environment variables of the servers, such as ``LIFTBRIDGE_ENCRYPTION_KEY``. Few variables of
            this process are passed on.
        tls: TLS context for reaching servers whose ``config`` has a ``tls.key`` and a ``tls.cert``.
        policy: Permissions of clients, one line ``p, client, stream, method`` for each, such as ``p, app,
            orders, Publish``. A client is identified by the common name of its certificate. The stream of
            FetchMetadata is ``*``. An empty policy allows nothing. Needs ``tls``, and ``tls.key``,
            ``tls.cert`` and ``tls.client.auth.ca`` in ``config``. Default: every client may make every call.
        start_timeout: Seconds until the whole cluster must be ready.

    Raises:
        UsageError: ``nodes`` is out of range, both ``nats_url`` and ``nats_server`` are given, or
            ``policy`` is given without the TLS settings that it needs.
        MissingExtraError: The ``[client]`` extra is not installed.
        ServerStartError: On entering: the server program was not found, or the cluster did not start.

    Example:
        >>> with run_liftbridge() as cluster:
        ...     cluster.create_stream("orders")
        ...     cluster.partition_metadata("orders").newestOffset
        -1
    """
    if nodes not in _SIZES:
        raise UsageError(f"nodes must be 1 or 3, got {nodes!r}")
    if nats_url is not None and nats_server is not None:
        raise UsageError("nats_url and nats_server exclude each other; leave one of them out")
    flat = _flatten(config or {})
    if policy is not None:
        _check_policy_settings(flat, tls)
    return LiftbridgeCluster(
        nodes, nats_server if nats_url is None else nats_url, flat, env or {}, tls, policy, start_timeout
    )


class LiftbridgeNode(ServerNode):
    """One server of a cluster. Not thread-safe.

    Attributes:
        id: Id in the cluster, as in the metadata.
    """

    kind = "Liftbridge"
    # Liftbridge panics if its own streams can't be created within 10 s of its election, if it is voted out
    # during that time, or if NATS takes longer than 2 s to answer five times. (With no NATS at all it logs
    # "no servers available".) It also panics if a faster node asks for its vote between its check for earlier
    # state and its bootstrap. The vote is state, so the next start does not bootstrap.
    too_busy = (
        "bootstrap only works on new clusters",
        "raft operation timed out",
        "error on metadata leadership step down",
        "nats: timeout",
        "i/o timeout",
    )

    def __init__(
        self,
        node_id: str,
        folder: Path,
        nats_url: Callable[[], str],
        config: Mapping[str, object],
        env: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(node_id, folder, nats_url, tls, "liftbridge.log")
        self._config = config
        self._env = env

    def _launch(self) -> None:
        binary = find_liftbridge()
        own = {
            "listen": self.address,
            "data.dir": str(self._folder / "data"),
            "nats.servers": [self._nats_url()],
        }
        config = {**own, **self._config}
        if binary.has_telemetry:
            config.setdefault("telemetry.enabled", False)
        path = self._folder / "liftbridge.yaml"
        # JSON is valid YAML.
        path.write_text(json.dumps(config, indent=1), "utf-8")
        self._process.start([str(binary.path), "-c", str(path)], self._env)


class LiftbridgeCluster(ServerCluster[LiftbridgeNode]):
    """A Liftbridge cluster, made by :func:`run_liftbridge`. Not thread-safe.

    Attributes:
        nodes: The servers.
    """

    def __init__(
        self,
        size: int,
        nats: NatsServer | str | None,
        config: Mapping[str, object],
        env: Mapping[str, str],
        tls: ssl.SSLContext | None,
        policy: str | None,
        start_timeout: float,
    ) -> None:
        super().__init__(nats, lambda _: run_nats_server(), tls, start_timeout)
        authorization = {} if policy is None else _write_policy(self._folder, policy)
        self._config = {
            **_DEFAULTS,
            **(_CLUSTER_DEFAULTS if size > 1 else {}),
            **authorization,
            **config,
        }
        self._env = env
        ids = [f"node{number}" for number in range(1, size + 1)]
        self.nodes = [self._node(node_id, ids) for node_id in ids]

    @property
    def version(self) -> str:
        """Version that the server program reports, such as ``v1.9.0``."""
        return find_liftbridge().version

    def _node(self, node_id: str, ids: list[str]) -> LiftbridgeNode:
        clustering: dict[str, object] = {
            "clustering.server.id": node_id,
            # Clusters can share a NATS server if their internal subjects differ.
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
        keeps_cursors = bool(self._config["cursors.stream.partitions"])
        return (
            brokers_are_known(self.addresses, self._ids, self._tls)
            and leader_works(self.addresses, self._tls)
            and (not keeps_cursors or cursors_work(self.addresses, self._tls))
        )


def _check_policy_settings(config: Mapping[str, object], tls: ssl.SSLContext | None) -> None:
    missing = [name for name in _POLICY_NEEDS if name not in config]
    if missing:
        raise UsageError(f"policy needs {', '.join(_POLICY_NEEDS)} in config, got no {', '.join(missing)}")
    if tls is None:
        raise UsageError("policy needs tls with a client certificate, got None")


def _write_policy(folder: Path, policy: str) -> dict[str, object]:
    """Write the files of an authorization policy; return the settings that enforce it."""
    model_file, policy_file = folder / "model.conf", folder / "policy.csv"
    model_file.write_text(_POLICY_MODEL, "utf-8")
    policy_file.write_text(policy, "utf-8")
    return {
        "tls.client.auth.enabled": True,
        "tls.client.authz.enabled": True,
        "tls.client.authz.model": str(model_file),
        "tls.client.authz.policy": str(policy_file),
    }


def _flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return a configuration without nesting, with dotted names, as the server reads it."""
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
