"""An S3 server on this machine: moto's, in a process of its own.

In the process of a test it would deadlock: pyarrow holds the interpreter's lock in some of its requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.fs as pafs

__all__ = ["S3Server", "run_s3"]

_BUCKET: Final = "archives"
_SECRET: Final = "hidden-word"
#: moto looks if an object is there (``If-None-Match``) and stores it in two steps, and both of two writers at
#: once could succeed. So one request is handled at a time, once it has come completely.
_PROGRAM: Final = """
import io
import sys
import threading

from moto.moto_server import threaded_moto_server


class OneByOne(threaded_moto_server.DomainDispatcherApplication):
    turn = threading.Lock()

    def __call__(self, environ, start_response):
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if size:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        with self.turn:
            return super().__call__(environ, start_response)


threaded_moto_server.DomainDispatcherApplication = OneByOne
server = threaded_moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server with an empty bucket.

    Attributes:
        port: Its port on 127.0.0.1.
        process: Its process.
    """

    port: int
    process: subprocess.Popen[str]

    def url(self, folder: str) -> str:
        """Return the URL of a folder in the bucket."""
        query = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://key:{_SECRET}@{_BUCKET}/{folder}?{query}"

    def path(self, folder: str) -> str:
        """Return the path of a folder in the file system."""
        return f"{_BUCKET}/{folder}"

    @property
    def secret(self) -> str:
        """Secret access key, which no output may have."""
        return _SECRET

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options of deltalake and polars."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": _SECRET,
        }

    @property
    def iceberg_options(self) -> dict[str, str]:
        """Properties of a catalogue of pyiceberg."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.region": "us-east-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": _SECRET,
        }

    @property
    def filesystem(self) -> Any:
        """File system of pyarrow."""
        return pafs.S3FileSystem(
            access_key="key",
            secret_key=_SECRET,
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        )


@contextmanager
def run_s3() -> Iterator[S3Server]:
    """Run a server while the block runs."""
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            server = S3Server(int(process.stdout.readline()), process)
            server.filesystem.create_dir(_BUCKET)
            yield server
        finally:
            process.kill()
