"""A NATS server that begins with TLS."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from liftenvelope.testing._binaries import find_nats_server
from liftenvelope.testing._ports import free_port, release_port
from tests.integration.certificates import Certificates


@contextmanager
def tls_first_server(folder: Path) -> Iterator[str]:
    """A server that says nothing before TLS. :func:`run_nats_server` would wait for its plain greeting."""
    Certificates(folder)
    port = free_port()
    tls = {
        "cert_file": str(folder / "cert.pem"),
        "key_file": str(folder / "key.pem"),
        "handshake_first": True,
    }
    config = {
        "host": "127.0.0.1",
        "port": port,
        "tls": tls,
        "jetstream": {"store_dir": str(folder / "store")},
    }
    (folder / "server.conf").write_text(json.dumps(config))
    with subprocess.Popen(
        [find_nats_server(), "-c", str(folder / "server.conf")], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            while "Server is ready" not in (line := process.stderr.readline()):
                assert line, "the server did not start"
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()
            release_port(port)
