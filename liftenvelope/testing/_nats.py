"""Runs a nats-server for tests."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import UsageError
from liftenvelope.testing._binaries import find_nats_server
from liftenvelope.testing._errors import ServerStartError
from liftenvelope.testing._lifecycle import ManagedServer
from liftenvelope.testing._ports import LOOPBACK, free_port, release_port
from liftenvelope.testing._process import ServerProcess, make_folder, remove_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NatsServer", "run_nats_server"]

_POLL_INTERVAL: Final = 0.02
# Seconds to wait for a server's first line. The read is repeated until the server is ready.
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
    """Return a nats-server on the loopback interface; ``with`` or ``async with`` starts it.

    Its data are in a temporary folder that is removed at the end. It ends with this Python process at the
    latest.

    Args:
        jetstream: Enable JetStream, with its store in that folder.
        port: Port to listen on. Default: a free port, which stays the same across restarts.
        max_payload: Largest message in bytes. Default: the server's own limit, 1 MiB.
        config: Further settings, such as ``{"max_control_line": 8192}``. The names are those of the server's
            configuration file. They override the defaults of this function.
        config_text: Further lines, in the syntax of the server's configuration file. Default: none.
        start_timeout: Seconds until the server must be ready.

    Raises:
        UsageError: ``port`` or ``max_payload`` is out of range.
        ServerStartError: On entering: the server program was not found, or the server did not start.

    Example:
        >>> with run_nats_server(max_payload=65536) as server:
        ...     server.url.startswith("nats://127.0.0.1:")
        True
    """
    if port is not None and not 1 <= port <= 65535:
        raise UsageError(f"port must be 1 to 65535, or None, got {port!r}")
    if max_payload is not None and max_payload < 1:
        raise UsageError(f"max_payload must be at least 1 byte, or None, got {max_payload!r}")
    options: dict[str, object] = {} if max_payload is None else {"max_payload": max_payload}
    return NatsServer(
        {**options, **(config or {})},
        config_text,
        jetstream=jetstream,
        port=port,
        start_timeout=start_timeout,
    )


class NatsServer(ManagedServer):
    """A nats-server, made by :func:`run_nats_server`. Not thread-safe."""

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
        """Port of the server. It stays the same across restarts."""
        if self._port is None:
            raise UsageError("the server has no port yet; start it first")
        return self._port

    @property
    def address(self) -> str:
        """Address as ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """URL as ``nats://host:port``."""
        return f"nats://{self.address}"

    @property
    def version(self) -> str:
        """Version that the server reports, such as ``2.12.1``; empty before the first start."""
        return str(self._info.get("version", ""))

    @property
    def pid(self) -> int | None:
        """Process id; None if the server is not running."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._process.is_running

    def start(self) -> None:
        """Start the server and wait until it is ready. A restart keeps the port and the data.

        Raises:
            ServerStartError: The server did not become ready. The message ends with the log.
            UsageError: The server is running.
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
                # Another program took the port after it was found to be free.
                if _ADDRESS_IN_USE not in str(exc) or not other_ports:
                    raise
            else:
                self._port = port
                return

    def stop(self) -> int | None:
        """Stop the server cleanly and return its exit status. The data are kept. Does nothing if stopped."""
        return self._process.stop()

    def kill(self) -> int | None:
        """Kill the server with SIGKILL and wait for its end. The data are kept as they are."""
        return self._process.kill()

    def close(self) -> None:
        """Stop the server, remove its data and release its port. The log can still be read."""
        self._process.stop()
        self._process.log()
        if self._port is not None:
            release_port(self._port)
        remove_folder(self._folder)

    def log(self) -> str:
        """Return the whole log since the first start."""
        return self._process.log()

    def failures(self) -> list[str]:
        """Describe the server if it has ended without being told to; otherwise the list is empty."""
        ended = f"ended with status {self._process.returncode}"
        return [str(self._failure(ended))] if self._process.has_failed else []

    def _start_on(self, port: int) -> None:
        name = f"{self._folder.name}-{port}"
        path = self._folder / "nats-server.conf"
        # JSON values are valid in the server's configuration format, except for the escape \u.
        settings = self._configuration(name, port).items()
        lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in settings]
        path.write_text("\n".join([*lines, self._config_text, ""]), "utf-8")
        program = find_nats_server()
        try:
            self._process.start([str(program), "-c", str(path)], {})
        except OSError as exc:
            raise ServerStartError(f"{program} can't be run: {exc.strerror}") from exc
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
            # Servers without a folder of their own would share the default folder.
            folder = {"store_dir": str(self._folder / "jetstream")}
            given = {**given, "jetstream": {**folder, **(jetstream or {})}}
        return {**config, **given}

    def _wait_ready(self, name: str, port: int) -> dict[str, Any]:
        wanted = self._config.get("server_name", name)
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline:
            if not self._process.is_running:
                raise self._failure(f"ended with status {self._process.returncode}")
            # Another server that answers on the port does not count.
            if self._process.listens_on(port):
                info = _read_info(port)
                if info.get("server_name") == wanted:
                    return info
            time.sleep(_POLL_INTERVAL)
        raise self._failure(f"was not ready after {self._start_timeout} s")

    def _failure(self, what: str) -> ServerStartError:
        return ServerStartError(f"nats-server {what}. Its log:\n{self._process.log_tail()}")


def _read_info(port: int) -> dict[str, Any]:
    """Return the INFO of the server at a port; empty if no NATS server answers."""
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
