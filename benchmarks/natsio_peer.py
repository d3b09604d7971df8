"""natsio as a peer: a program for a Python of its own, with the flags and the report of the Go programs.

``natsio_peer.py jetconsume -url=… -stream=… -consumer=… -n=…`` reads a pull consumer that is there already.
``natsio_peer.py jetpublish -url=… -subject=… -n=…`` publishes to a stream that is there already.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from time import perf_counter
from typing import Any

import natsio

DEADLINE = 120.0


async def jetconsume(flags: dict[str, str]) -> dict[str, Any]:
    """Read N messages, from the call of ``consume`` to the last of them, and to its ack."""
    count, size = int(flags["n"]), int(flags["size"])
    with_ack, read, wrong = flags.get("ack") == "true", 0, 0
    async with await natsio.connect(flags["url"]) as nc:
        stream = await nc.jetstream().stream(flags["stream"])
        consumer = await stream.consumer(flags["consumer"])
        began = perf_counter()
        async with consumer.consume() as messages:
            async for message in messages:
                read += 1
                wrong += len(message.payload) != size
                if with_ack:
                    await message.ack()
                if read == count:
                    break
            await nc.flush()
            taken = perf_counter() - began
    return {"read": read, "wrong": wrong, "messages_per_s": read / taken}


async def jetpublish(flags: dict[str, str]) -> dict[str, Any]:
    """Publish N messages, from the first call to the last ack."""
    count, window, value = int(flags["n"]), int(flags["window"]), b"x" * int(flags["size"])
    async with await natsio.connect(flags["url"]) as nc:
        js = nc.jetstream(publish_async_max_pending=window, publish_async_stall_wait=DEADLINE)
        began = perf_counter()
        futures = [await js.publish_async(flags["subject"], value) for _ in range(count)]
        await js.publish_async_complete(timeout=DEADLINE)
        taken = perf_counter() - began
    acks = [future.result().seq for future in futures]
    return {"acked": len(acks), "last": max(acks), "seconds": taken}


def main() -> None:
    """Run the program that the first argument names, and print what it found."""
    flags = dict(argument.removeprefix("-").split("=", 1) for argument in sys.argv[2:])
    program = {"jetconsume": jetconsume, "jetpublish": jetpublish}[sys.argv[1]]
    found = asyncio.run(asyncio.wait_for(program(flags), DEADLINE))
    print(json.dumps({"client": version("natsio"), **found}))


if __name__ == "__main__":
    main()
