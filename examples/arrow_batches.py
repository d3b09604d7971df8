"""Decode envelopes from NATS into Arrow columns, and encode columns as envelopes. Needs no Liftbridge."""

import asyncio

import nats
import pyarrow as pa
import pyarrow.compute as pc

from liftenvelope.arrow import decode_batch, encode_batch
from liftenvelope.envelope import new_message
from liftenvelope.testing import run_nats_server


async def main() -> None:
    async with run_nats_server() as server, await nats.connect(server.url) as nc:
        subscription = await nc.subscribe("sensors.>")
        for number in range(6):
            key = b"kitchen" if number % 2 else b"hall"
            await nc.publish("sensors.temperature", new_message(b"%d" % (20 + number), key=key))
        await nc.publish("sensors.temperature", b"a plain NATS message")
        payloads = [(await subscription.next_msg()).data for _ in range(7)]

    # With "null", an invalid row has its reason in the column "error", and the other rows are decoded.
    rows = decode_batch(payloads, on_error="null")
    for row, error in enumerate(rows["error"].to_pylist()):
        if error is not None:
            print(f"row {row} is no envelope: {error}")

    sound = pa.table(rows).filter(pc.is_null(rows["error"]))
    degrees = pc.cast(pc.cast(sound["value"], pa.string()), pa.int64())
    table = pa.table({"key": sound["key"], "degrees": degrees})
    means = table.group_by("key").aggregate([("degrees", "mean")])
    for key, mean in zip(means["key"].to_pylist(), means["degrees_mean"].to_pylist(), strict=True):
        print(f"{key.decode()}: {mean:.1f} degrees on average")

    # Encoding: columns in, envelopes out, with the same bytes as from new_message.
    envelopes = encode_batch(sound["value"], keys=sound["key"])
    same = envelopes.to_pylist() == payloads[:6]
    print(f"{len(envelopes)} envelopes made again, byte for byte the same: {same}")


if __name__ == "__main__":
    asyncio.run(main())
