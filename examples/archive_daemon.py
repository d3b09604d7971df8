"""Archive a stream by a configuration file, as ``liftenvelope archive --once`` does, and restore it."""

import asyncio
import tempfile
from pathlib import Path

import nats
import pyarrow as pa

from liftenvelope import bulk
from liftenvelope.archive import ArchiveDaemon, read_archive_config
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server

CONFIG = """
[[pipeline]]
name = "orders"
source = "{url}"
stream = "ORDERS"

[pipeline.target]
path = "{folder}/archive"
partition_by = ["dt", "hour"]
"""


async def make_stream(url: str, name: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))


def main() -> None:
    with run_nats_server(jetstream=True) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(make_stream(server.url, "ORDERS"))
        table = pa.table({"value": [f"order {number}" for number in range(1000)]})
        bulk.write(server.url, "ORDERS", table, subject="ORDERS.new")

        config = Path(folder, "pipeline.toml")
        config.write_text(CONFIG.format(url=server.url, folder=folder))
        print(
            "all pipelines succeeded:",
            asyncio.run(ArchiveDaemon(read_archive_config(str(config))).run(once=True)),
        )

        asyncio.run(make_stream(server.url, "COPY"))
        print(
            bulk.restore(
                f"{folder}/archive",
                server.url,
                "COPY",
                archived_stream="ORDERS",
                subject="COPY.new",
                verify=True,
            )
        )


if __name__ == "__main__":
    main()
