"""A nats-server for tests."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import UsageError
from liftenvelope.testing._binaries import find_nats_server
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import Managed
from liftenvelope.testing._ports import LOOPBACK, free_port, release_port
from liftenvelope.testing._process import ServerProcess, make_folder, remove_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NatsServer", "run_nats_server"]

_POLL_INTERVAL: Final = 0.02
# Seconds for the first line of a server. It is read again until the server is ready.
_INFO_TIMEOUT: Final = 10.0
_PORT_TRIES: Final = 5
_ADDRESS_IN_USE: Final = "address already in use"


def run_nats_server(
    *,
    jetstream: bool = False,
    port: int | None = None,
    max_payload: int | None = None,
    config: Mapping[str, object] | None = None,
    config_text: str = "",
    start_timeout: float = 120.0,
) -> NatsServer:
    """Return a nats-server on the loopback interface, to be started by ``with`` or ``async with``.

    Its data are in a temporary folder that is removed at the end. It never outlives this Python process.

    Args:
        jetstream: Whether it has JetStream, with its store in that folder.
        port: Where it listens. By default on a free port, which it keeps when it is started again.
        max_payload: The largest message it takes, in bytes; by default the server's own limit, 1 MiB.
        config: More of its configuration, such as ``{"max_control_line": 8192}``. The names are those of the
            server's configuration file; what stands here goes before what is written here by default.
        config_text: More lines of its configuration, in the syntax of the server's configuration file.
            Default: none.
        start_timeout: Seconds within which it must be ready.

    Raises:
        UsageError: ``port`` or ``max_payload`` makes no sense.
        ServerStartError: On entering: there is no server program, or it did not start.

    Example:
        >>> with run_nats_server(max_payload=65536) as server:
        ...     server.url.startswith("nats://127.0.0.1:")
        True
    """
    if port is not None and not 1 <= port <= 65535:
        raise UsageError(f"port={port!r}: expected 1 to 65535, or None")
    if max_payload is not None and max_payload < 1:
        raise UsageError(f"max_payload={max_payload!r}: expected a positive number of bytes, or None")
    options: dict[str, object] = {} if max_payload is None else {"max_payload": max_payload}
    return NatsServer(
        {**options, **(config or {})},
        config_text,
        jetstream=jetstream,
        port=port,
        start_timeout=start_timeout,
    )


class NatsServer(Managed):
    """A nats-server, made by :func:`run_nats_server`. For one thread at a time."""

    def __init__(
        self,
        config: Mapping[str, object],
        config_text: str = "",
        *,
        jetstream: bool,
        port: int | None,
        start_timeout: float,
    ) -> None:
        self._config = config
        self._config_text = config_text
        self._jetstream = jetstream
        self._port = port
        self._start_timeout = start_timeout
        self._folder = make_folder()
        self._process = ServerProcess(self._folder, "nats-server.log")
        self._info: dict[str, Any] = {}

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
    def url(self) -> str:
        """Its ``nats://host:port``."""
        return f"nats://{self.address}"

    @property
    def version(self) -> str:
        """What it says its version is, such as ``2.12.1``."""
        return str(self._info.get("version", ""))

    @property
    def pid(self) -> int | None:
        """Its process id, None when it is not running."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.is_running

    def start(self) -> None:
        """Start it and wait until it is ready; after a stop, on the same port and with the same data.

        Raises:
            ServerStartError: It did not become ready; the message ends with its log.
            UsageError: It is running.
        """
        if self._port is not None:
            self._start_on(self._port)
            return
        for other_ports in reversed(range(_PORT_TRIES)):
            port = free_port()
            try:
                self._start_on(port)
            except ServerStartError as exc:
                release_port(port)
                # Another program took the port since it was found to be free.
                if _ADDRESS_IN_USE not in str(exc) or not other_ports:
                    raise
            else:
                self._port = port
                return

    def stop(self) -> int | None:
        """Have it stop cleanly; return its exit status. Its data stay. Nothing happens if it is stopped."""
        return self._process.stop()

    def kill(self) -> int | None:
        """Kill it with SIGKILL, and wait until it has gone. Its data stay as they are."""
        return self._process.kill()

    def close(self) -> None:
        """Stop it, remove its data and give up its port. The log can still be read."""
        self._process.stop()
        self._process.log()
        if self._port is not None:
            release_port(self._port)
        remove_folder(self._folder)

    def log(self) -> str:
        """Return all that it has logged, since its first start."""
        return self._process.log()

    def _start_on(self, port: int) -> None:
        name = f"{self._folder.name}-{port}"
        path = self._folder / "nats-server.conf"
        # A value in JSON is a valid value there.
        lines = [f"{key}: {json.dumps(value)}" for key, value in self._configuration(name, port).items()]
        path.write_text("\n".join([*lines, self._config_text, ""]), "utf-8")
        self._process.start([str(find_nats_server()), "-c", str(path)], {})
        try:
            self._info = self._wait_ready(name, port)
        except ServerStartError:
            self._process.kill()
            raise

    def _configuration(self, name: str, port: int) -> dict[str, object]:
        config: dict[str, object] = {"server_name": name, "host": LOOPBACK, "port": port}
        given = self._config
        jetstream = given.get("jetstream")
        if self._jetstream and (jetstream is None or isinstance(jetstream, dict)):
            # Without a folder of its own it would share the default one with any other such server.
            folder = {"store_dir": str(self._folder / "jetstream")}
            given = {**given, "jetstream": {**folder, **(jetstream or {})}}
        return {**config, **given}

    def _wait_ready(self, name: str, port: int) -> dict[str, Any]:
        wanted = self._config.get("server_name", name)
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline:
            if not self._process.is_running:
                raise self._failure(f"ended with status {self._process.returncode}")
            # Another server that answers on the port is not taken for ours.
            if self._process.listens_on(port):
                info = _read_info(port)
                if info.get("server_name") == wanted:
                    return info
            time.sleep(_POLL_INTERVAL)
        raise self._failure(f"was not ready after {self._start_timeout} s")

    def _failure(self, what: str) -> ServerStartError:
        return ServerStartError(f"nats-server {what}. Its log:\n{self._process.log_tail()}")


def _read_info(port: int) -> dict[str, Any]:
    """Return what the server at a port says in its first line, or nothing if there is no such server."""
    try:
        with (
            socket.create_connection((LOOPBACK, port), timeout=_INFO_TIMEOUT) as connection,
            connection.makefile("rb") as lines,
        ):
            line = lines.readline()
            if not line.startswith(b"INFO "):
                return {}
            info: dict[str, Any] = json.loads(line[5:])
            return info
    except (OSError, ValueError):
        return {}
