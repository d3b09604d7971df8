"""Keep a list of a cluster's streams up to date, from its activity stream.

Shows typed events, and how a program continues after the last event that it has processed.
"""

import asyncio

import liftenvelope
from liftenvelope import Client
from liftenvelope.client import (
    Activity,
    ActivityEvent,
    StreamCreated,
    StreamDeleted,
    StreamReadonlySet,
    UnknownActivity,
)
from liftenvelope.testing import run_liftbridge


def apply(event: ActivityEvent, streams: dict[str, int]) -> None:
    """Update the number of partitions by stream from one event."""
    match event:
        case StreamCreated():
            streams[event.stream] = len(event.partitions)
        case StreamDeleted():
            streams.pop(event.stream, None)
        case StreamReadonlySet():
            print(f"{event.stream}: partitions {event.partitions}, read-only: {event.readonly}")
        case UnknownActivity():
            print(f"something that this version does not know: operation {event.op}")


async def catch_up(client: Client, streams: dict[str, int], last: Activity | None = None) -> Activity | None:
    """Read up to the event that is newest now; return the event to continue after."""
    async with client.activity(start=last or "earliest", stop="latest") as events:
        async for event in events:
            apply(event, streams)
            last = event
    return last


async def main() -> None:
    async with run_liftbridge() as cluster, liftenvelope.connect(cluster.addresses) as client:
        streams: dict[str, int] = {}
        async with client.activity() as events:  # to wait for the events of these calls
            await client.create_stream("orders", "orders", partitions=3)
            await client.create_stream("scratch", "scratch")
            await client.delete_stream("scratch")
            async for event in events:
                if isinstance(event, StreamDeleted):
                    break
        last = await catch_up(client, streams)
        print(f"{streams}; continue after {last}")


if __name__ == "__main__":
    asyncio.run(main())
