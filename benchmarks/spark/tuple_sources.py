"""Peers of our sources: plain sources of tuples, over nats-py and grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from liftenvelope.spark._schema import RowOptions, spark_ddl

_MICROS = 1_000
_FETCH = 1_000


def _row(stream: str, subject: str, key: bytes | None, value: bytes, offset: int, time_ns: int) -> Any:
    moment = datetime.fromtimestamp(time_ns // _MICROS / 1_000_000, UTC)
    return key, value, stream, 0, offset, moment, 1, subject, time_ns


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        count, tasks = int(self._options["count"]), int(self._options["tasks"])
        share = count // tasks
        return [InputPartition((i * share, share)) for i in range(tasks)]


class _NatsReader(_Reader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        first, count = partition.value
        rows = self._fetch(self._options["servers"], self._options["stream"], first, count)
        with asyncio.Runner() as runner:

            async def following() -> list[Any] | None:
                return await anext(rows, None)

            while (found := runner.run(following())) is not None:
                yield from found
            runner.run(rows.aclose())  # type: ignore[attr-defined] # it is a generator

    async def _fetch(self, servers: str, stream: str, first: int, count: int) -> AsyncIterator[list[Any]]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            inactive_threshold=60,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first + 1,
        )
        async with await nats.connect(servers) as nc:
            consumer = await nc.jetstream().pull_subscribe("", stream=stream, config=config)
            while count:
                found = await consumer.fetch(min(_FETCH, count), timeout=20)
                count -= len(found)
                yield [_from_nats(stream, message) for message in found]
            await consumer.unsubscribe()


def _from_nats(stream: str, message: Any) -> Any:
    about = message.metadata
    time_ns = int(about.timestamp.timestamp() * 1e9)
    return _row(stream, message.subject, None, message.data, about.sequence.stream - 1, time_ns)


class _GrpcReader(_Reader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        import grpc

        from liftenvelope._pb import api_pb2

        first, count = partition.value
        stream = self._options["stream"]
        request = api_pb2.SubscribeRequest(stream=stream, startPosition=api_pb2.OFFSET, startOffset=first)
        with grpc.insecure_channel(self._options["servers"]) as channel:
            subscribe: Any = channel.unary_stream(
                "/proto.API/Subscribe",
                lambda message: message.SerializeToString(),
                api_pb2.Message.FromString,
            )
            call = subscribe(request)
            next(call)  # the first one says only that the server is there
            for _ in range(count):
                m = next(call)
                yield _row(stream, m.subject, m.key or None, m.value, m.offset, m.timestamp)
            call.cancel()


class _Tuples(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = dict(options)

    def schema(self) -> str:
        return spark_ddl(RowOptions())


class NatsTuples(_Tuples):
    """A range of a stream by nats-py's fetch."""

    @classmethod
    def name(cls) -> str:
        return "nats_py_tuples"

    def reader(self, schema: Any) -> DataSourceReader:
        return _NatsReader(self.options)


class GrpcTuples(_Tuples):
    """Likewise of Liftbridge, by grpcio."""

    @classmethod
    def name(cls) -> str:
        return "grpcio_tuples"

    def reader(self, schema: Any) -> DataSourceReader:
        return _GrpcReader(self.options)
