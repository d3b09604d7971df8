"""nats-py connects by WebSocket in a process that imported liftenvelope first, and so no aiohttp."""

import subprocess
import sys

from liftenvelope.testing import run_nats_server
from liftenvelope.testing._ports import free_port, release_port

PROGRAM = """
import asyncio, sys
from liftenvelope.nats import AckInbox
import nats

async def main(url):
    assert "aiohttp" not in sys.modules
    nc = await nats.connect(url)
    got = await nc.subscribe("orders")
    async with AckInbox(nc) as inbox:
        ack = inbox.publish_nowait("orders", b"first")
        received = await got.next_msg(60.0)
        print(b"first" in received.data, "aiohttp" in sys.modules)
        ack.cancel()
    await nc.close()

asyncio.run(main(sys.argv[1]))
"""


def test_websocket_connection() -> None:
    port = free_port()
    try:
        with run_nats_server(config={"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}}):
            arguments = [sys.executable, "-c", PROGRAM, f"ws://127.0.0.1:{port}"]
            done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    finally:
        release_port(port)
    assert done.stdout.split() == ["True", "True"], done.stderr
