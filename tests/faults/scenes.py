"""Servers of one run, with a proxy on each wire that a fault can spoil."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import nats

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access
from liftenvelope.client import Client
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import FaultProxy, NatsServer, run_gateway, run_liftbridge, run_nats_server
from liftenvelope.testing._cluster import ServerCluster
from liftenvelope.types import AckPolicy
from tests.faults.checker import Checker
from tests.faults.messages import COLUMNS, columns_of, make_marker
from tests.integration.jetstream_cluster import three_servers

__all__ = ["BALLAST", "PATIENCE", "Process", "Scene", "connect_nats", "start_scene"]

#: Seconds in which servers that are whole again must answer, on a busy machine.
PATIENCE: Final = 120.0
#: The stream that fills JetStream's storage, and the most that the server stores.
BALLAST: Final = "ballast"
_MOST_STORED: Final = 256 * 1024 * 1024
#: Bytes of the disk that a full one stands for.
_DISK: Final = 320 * 1024 * 1024


class Process(Protocol):
    """A process that faults are done to."""

    @property
    def pid(self) -> int | None: ...
    @property
    def is_running(self) -> bool: ...
    def kill(self) -> object: ...
    def start(self) -> None: ...


@dataclass
class Scene:
    """Running servers.

    Attributes:
        name: As in the plan.
        processes: The servers by name.
        wires: The proxies of each wire.
        nats_urls: NATS servers, through proxies.
        direct_nats_urls: The same without proxies.
        cluster: Servers of the Liftbridge API, None where there is JetStream alone.
        address_map: Where clients reach those through proxies.
        log: Returns the last lines that the servers have logged.
    """

    name: str
    processes: dict[str, Process]
    wires: dict[str, list[FaultProxy]]
    nats_urls: list[str]
    direct_nats_urls: list[str]
    log: Callable[[], str]
    disk: Path | None = None
    cluster: ServerCluster[Any] | None = None
    address_map: dict[str, str] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Number of servers that store each message."""
        return 3 if self.name.endswith("3") else 1

    @property
    def is_liftbridge(self) -> bool:
        """True if the servers are those of the Liftbridge project."""
        return self.name.startswith("liftbridge")

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy whose acks survive the loss of any one server."""
        return AckPolicy.ALL if self.replicas > 1 else AckPolicy.LEADER

    @property
    def addresses(self) -> list[str]:
        """Servers of the Liftbridge API."""
        assert self.cluster is not None
        return self.cluster.addresses

    @property
    def source(self) -> list[str]:
        """URLs of the servers for bulk reads and writes, through proxies."""
        return self.nats_urls if self.cluster is None else self.addresses

    @property
    def direct_source(self) -> list[str]:
        """The same, without proxies."""
        return self.direct_nats_urls if self.cluster is None else self.addresses

    def create_stream(self, name: str, partitions: int = 1) -> None:
        """Create the stream of a run."""
        if self.cluster is not None:
            self.cluster.create_stream(
                name, partitions=partitions, replication_factor=self.replicas, timeout=PATIENCE
            )
            return
        config = StreamConfig(
            name=name,
            subjects=(f"{name}.>",),
            num_replicas=self.replicas,
            allow_atomic=True,
            allow_batched=True,
            duplicate_window=600,
        )
        asyncio.run(_create_stream(self.direct_nats_urls, config))

    def api_client(self) -> Client:
        """Return a client of the Liftbridge API, through proxies."""
        return liftenvelope.connect(
            self.addresses, address_map=self.address_map, connect_timeout=10, on_event=lambda _: None
        )

    def check_rows(self, stream: str, partitions: int, checker: Checker) -> None:
        """Give the checker all rows of the stream."""
        if self.is_liftbridge:
            self._show_all(stream, partitions)
        access = Access(timeout=30, reconnect_wait=PATIENCE)
        for partition in range(partitions):
            chosen = partition if self.cluster is not None else None
            reader = _patiently(
                lambda chosen=chosen: bulk.read(  # type: ignore[misc]
                    self.direct_source, stream, partitions=chosen, columns=COLUMNS, access=access
                )
            )
            for batch in reader:
                checker.feed(partition, *columns_of(batch))

    def _show_all(self, stream: str, partitions: int) -> None:
        """After a kill, Liftbridge hides the end of a partition until one more message is published."""
        cluster = self.cluster
        assert cluster is not None
        with liftenvelope.connect_blocking(self.addresses, timeout=30, ack_wait=10) as client:
            for partition in range(partitions):
                _patiently(
                    lambda partition=partition: client.publish(  # type: ignore[misc]
                        stream, make_marker(partition), partition=partition, ack_policy=self.ack_policy
                    )
                )
        deadline = time.monotonic() + PATIENCE
        for partition in range(partitions):
            while True:
                found = cluster.partition_metadata(stream, partition, timeout=PATIENCE)
                if found.highWatermark == found.newestOffset:
                    break
                assert time.monotonic() < deadline, f"{stream}[{partition}] hides its end"
                time.sleep(0.1)


def _patiently(work: Callable[[], Any]) -> Any:
    """Do something that servers which have just come back may refuse for a while."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except LiftEnvelopeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


async def _create_stream(urls: Sequence[str], config: StreamConfig) -> None:
    async with await nats.connect(list(urls)) as nc, asyncio.timeout(PATIENCE):
        while True:
            try:
                await JetStream(nc).create_or_update_stream(config, timeout=5)
                return
            except LiftEnvelopeError:  # three servers have to find each other first
                await asyncio.sleep(0.1)


async def _ignore(_: Exception) -> None:
    """nats-py prints what goes wrong on a connection; the campaign looks at the outcomes."""


async def connect_nats(urls: Sequence[str]) -> Any:
    """Return a NATS connection that is made again quickly and for ever."""
    return await nats.connect(
        list(urls), reconnect_time_wait=0.05, max_reconnect_attempts=-1, connect_timeout=10, error_cb=_ignore
    )


@contextmanager
def start_scene(name: str) -> Iterator[Scene]:
    """Start the servers of a scene, and stop them at the end."""
    start: dict[str, Callable[[ExitStack], Scene]] = {
        "nats1": _nats1,
        "nats3": _nats3,
        "gateway1": lambda stack: _api(stack, "gateway", 1),
        "gateway2": lambda stack: _api(stack, "gateway", 2),
        "liftbridge1": lambda stack: _api(stack, "liftbridge", 1),
        "liftbridge3": lambda stack: _api(stack, "liftbridge", 3),
    }
    with ExitStack() as stack:
        yield start[name](stack)


def _mount(stack: ExitStack) -> Path | None:
    """Mount a small file system until the end of the scene; only root may do that, and not everywhere."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="liftenvelope-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", folder]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    stack.callback(subprocess.run, ["umount", "--lazy", folder], check=False)
    return Path(folder)


def _start_nats(stack: ExitStack) -> tuple[NatsServer, Path | None]:
    """Start a server whose storage is limited, on a small disk if there can be one."""
    disk = _mount(stack)
    folder = {} if disk is None else {"store_dir": str(disk)}
    config = {"jetstream": {"max_file_store": _MOST_STORED, **folder}}
    return stack.enter_context(run_nats_server(jetstream=True, config=config)), disk


def _nats1(stack: ExitStack) -> Scene:
    server, disk = _start_nats(stack)
    proxy = stack.enter_context(FaultProxy(server.url))
    return Scene(
        "nats1",
        {"nats": server},
        {"nats-wire": [proxy]},
        [f"nats://{proxy.address}"],
        [server.url],
        server.log,
        disk,
    )


def _nats3(stack: ExitStack) -> Scene:
    # Clients must not learn addresses that lead around the proxies.
    servers = stack.enter_context(three_servers(no_advertise=True))
    proxies = [stack.enter_context(FaultProxy(server.url)) for server in servers.values()]
    return Scene(
        "nats3",
        dict(servers),
        {"nats-wire": proxies},
        [f"nats://{proxy.address}" for proxy in proxies],
        [server.url for server in servers.values()],
        lambda: "\n".join(server.log()[-2_000:] for server in servers.values()),
    )


def _api(stack: ExitStack, make: str, nodes: int) -> Scene:
    disk = None
    if make == "gateway":
        server, disk = _start_nats(stack)
    else:
        server = stack.enter_context(run_nats_server())
    clients, store = (stack.enter_context(FaultProxy(server.url)) for _ in range(2))
    url = f"nats://{store.address}"
    run: Any = run_gateway if make == "gateway" else run_liftbridge
    options = {"config": {"broker_ttl": 3.0}} if make == "gateway" and nodes > 1 else {}
    cluster = stack.enter_context(run(nodes, nats_url=url, start_timeout=PATIENCE, **options))
    proxies = {address: stack.enter_context(FaultProxy(address)) for address in cluster.addresses}
    return Scene(
        f"{make}{nodes}",
        {"nats": server, **{f"{make}{i}": node for i, node in enumerate(cluster.nodes, 1)}},
        {"nats-wire": [clients], "store-wire": [store], "api-wire": list(proxies.values())},
        [f"nats://{clients.address}"],
        [server.url],
        lambda: f"{server.log()[-1_000:]}\n{cluster.log()[-4_000:]}",
        disk,
        cluster,
        {address: proxy.address for address, proxy in proxies.items()},
    )
