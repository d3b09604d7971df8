"""A FastStream app: handlers get envelopes, and await acks on the connection that FastStream reads with.

FastStream acks an order after its handler has returned, and by then the receipt is stored. A crash in between
repeats the order, so an order has one receipt or more, and never none.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import nats
from faststream import Context, ContextRepo, FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage

from liftenvelope import Message, new_message, unmarshal_message
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import run_gateway

ORDERS = [(b"anna", b"tea"), (b"ben", b"milk"), (b"anna", b"bread")]
Receipts = Annotated[EnvelopePublisher, Context("receipts")]


async def open_envelope(message: NatsMessage) -> Message:
    return unmarshal_message(message.body)


def make_app(nats_url: str) -> FastStream:
    broker = NatsBroker(nats_url, decoder=open_envelope, logger=None)

    @asynccontextmanager
    async def lifespan(context: ContextRepo) -> AsyncIterator[None]:
        nc = await broker.connect()
        async with AckInbox(nc) as inbox:
            context.set_global("receipts", EnvelopePublisher(nc, "receipts", inbox=inbox, timeout=30))
            yield

    app = FastStream(broker, lifespan=lifespan, logger=None)

    @broker.subscriber("orders", stream=JStream("ORDERS", declare=False), durable="billing", pull_sub=True)
    async def bill(order: Message, receipts: Receipts) -> None:
        ack = await receipts.publish(b"receipt for " + order.value, key=order.key)
        print(f"{order.key!r} ordered {order.value!r}: receipt at offset {ack.offset}")
        if ack.offset + 1 == len(ORDERS):
            app.exit()

    return app


async def main(nats_url: str) -> None:
    async with await nats.connect(nats_url) as nc, JetStream(nc) as js:
        await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders",)))
        for customer, order in ORDERS:
            await js.publish("orders", new_message(order, key=customer))
    await make_app(nats_url).run()


if __name__ == "__main__":
    with run_gateway() as server:
        server.create_stream("receipts")
        asyncio.run(main(server.nats_url))
