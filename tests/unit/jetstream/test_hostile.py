"""JetStream calls on a NATS server that is FAKE and hostile: every error has a type."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    ServerProtocolError,
    UsageError,
)
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.jetstream import Batch, ConsumerConfig, JetStream, StreamConfig, listing
from liftenvelope.jetstream._stream import Stream
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.jetstream.counting import is_stored
from liftenvelope.jetstream.infos import ConsumerInfo, StreamInfo
from tests.unit.bulk.test_hostile import ANSWERS
from tests.unit.client.test_hostile import raised
from tests.unit.hostile_nats import CONSUMER_INFO, STREAM_INFO, FakeNats, Script, msg, status, usual

TIMEOUT = 0.5
MORE_ANSWERS = {
    **ANSWERS,
    "message as text": b'{"message":"x","success":"x","purged":"x"}',
    "message without fields": b'{"message":{}}',
    "message of other types": b'{"message":{"subject":5,"seq":"x","time":5,"data":5,"hdrs":[]}}',
    "message of a bad time": b'{"message":{"subject":"s","seq":1,"time":"yesterday","data":"eA=="}}',
    "message of no time": b'{"message":{"subject":"s","seq":1,"time":"0001-01-01T00:00:00Z","data":"eA=="}}',
    "message of bad base64": b'{"message":{"subject":"s","seq":1,"time":"2026-11-22T11:33:47Z","data":"e"}}',
    "config of other types": b'{"config":{"name":5,"subjects":5,"retention":5,"max_age":"x"},"state":{}}',
    "negative purge": b'{"purged":-5}',
    "names of other types": b'{"streams":[5,null],"consumers":[5,null],"total":2}',
}


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[Client]:
    nc = await nats.connect(url)
    try:
        yield nc
    finally:
        await nc.close()


async def all_of(items: object) -> list[object]:
    return [item async for item in items]  # type: ignore[attr-defined]


async def stored(js: JetStream, **request: object) -> object:
    return await Stream(js.api, StreamInfo.from_json(STREAM_INFO)).get_message(**request)  # type: ignore[arg-type]


def stream(js: JetStream) -> Stream:
    return Stream(js.api, StreamInfo.from_json(STREAM_INFO))


CALLS: dict[str, Callable[[JetStream], Awaitable[object]]] = {
    "stream": lambda js: js.stream("S"),
    "create_stream": lambda js: js.create_stream(StreamConfig(name="S", subjects=("s",))),
    "update_stream": lambda js: js.update_stream(StreamConfig(name="S", subjects=("s",))),
    "streams": lambda js: all_of(js.streams()),
    "stream_names": lambda js: all_of(js.stream_names()),
    "account_info": lambda js: js.account_info(),
    "create_consumer": lambda js: js.create_consumer("S", ConsumerConfig(name="C")),
    "info with subjects": lambda js: stream(js).info(subjects_filter=">"),
    "purge": lambda js: stream(js).purge(),
    "get_message": lambda js: stored(js, sequence=1),
    "get_message direct": lambda js: stored(js, sequence=1, direct=True),
    "publish": lambda js: js.publish("s", b"x"),
    "is_stored": lambda js: is_stored(js.api, "S", 1, 2),
    "bucket": lambda js: Bucket(js, "bucket").create(),
    "bucket get": lambda js: Bucket(js, "bucket").get("a"),
    "bucket entries": lambda js: Bucket(js, "bucket").entries(">"),
    "group store": lambda js: GroupStore(js, "bucket", 1).open(TIMEOUT),
}


@pytest.mark.parametrize("answer", MORE_ANSWERS.values(), ids=MORE_ANSWERS.keys())
async def test_answers_end_with_typed_errors(answer: bytes) -> None:
    with FakeNats(script=lambda subject, reply, sid: msg(reply, sid, answer)).running() as server:
        async with connection(server.url) as nc:
            js = JetStream(nc, timeout=TIMEOUT)
            found = {name: await raised(call(js)) for name, call in CALLS.items()}
    # The caller's arguments are right.
    assert not [error for error in found.values() if isinstance(error, UsageError)]
    assert isinstance(found["stream"], LiftEnvelopeError)


@pytest.mark.parametrize("answer", [b"[]", b"5", b"{}", b"[" * 30_000, b'{"config":{}}'])
async def test_answer_that_makes_no_sense_is_a_protocol_error(answer: bytes) -> None:
    with FakeNats(script=lambda subject, reply, sid: msg(reply, sid, answer)).running() as server:
        async with connection(server.url) as nc:
            with pytest.raises(ServerProtocolError, match=r"the answer on 'STREAM\.INFO\.S' can't be read"):
                await JetStream(nc).stream("S")


HEADERS = (
    b"404",
    b"99999999999999999999999 x",
    b"\xd9\xa3 x",
    b"-5",
    b"200\r\nNats-Sequence: x",
    b"200\r\nNats-Sequence: 1\r\nNats-Stream: S\r\nNats-Subject: s",
    b"200\r\nNats-Sequence: 1\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Time-Stamp: never",
    b"200\r\nNats-Sequence: 9" + b"9" * 5_000 + b"\r\nNats-Stream: S\r\nNats-Subject: s"
    b"\r\nNats-Time-Stamp: 2026-11-22T11:33:47Z",
)


@pytest.mark.parametrize("head", HEADERS, ids=range(len(HEADERS)))
async def test_headers_of_direct_answers_end_with_typed_errors(head: bytes) -> None:
    with FakeNats(script=lambda subject, reply, sid: status(reply, sid, head)).running() as server:
        async with connection(server.url) as nc:
            error = await raised(stored(JetStream(nc, timeout=TIMEOUT), sequence=1, direct=True))
    assert error is not None


def pages(answers: bytes) -> Script:
    return lambda subject, reply, sid: msg(reply, sid, answers)


async def test_subjects_that_never_end_are_asked_for_once_more() -> None:
    """A total that is never reached: the pages repeat what was listed."""
    answer = b'{"config":{"name":"S"},"total":1000000,"state":{"subjects":{"a":1}}}'
    with FakeNats(script=pages(answer)).running() as server:
        async with connection(server.url) as nc:
            async with asyncio.timeout(60):
                await raised(stream(JetStream(nc)).info(subjects_filter=">"))


LISTINGS: dict[str, Callable[[JetStream], Awaitable[object]]] = {
    "streams": lambda js: all_of(js.streams()),
    "names": lambda js: all_of(js.stream_names()),
}


@pytest.mark.parametrize("call", LISTINGS.values(), ids=LISTINGS.keys())
async def test_listing_that_repeats_its_page_is_a_protocol_error(
    call: Callable[[JetStream], Awaitable[object]],
) -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        items = ["S"] if b".NAMES" in subject else [STREAM_INFO]
        return msg(reply, sid, json.dumps({"total": 2**63 - 1, "streams": items}).encode())

    with FakeNats(script=script).running() as server:
        async with connection(server.url) as nc, asyncio.timeout(60):
            with pytest.raises(ServerProtocolError, match=r"sent a page of STREAM\.\w+ twice, from 1 on"):
                await call(JetStream(nc))


ENDLESS: dict[str, Callable[[JetStream], Awaitable[object]]] = {
    "items of STREAM.NAMES": lambda js: all_of(js.stream_names()),
    "missing items of STREAM.LIST": lambda js: all_of(listing.stream_infos(js.api, missing=[])),
    "subjects of stream 'S'": lambda js: stream(js).info(subjects_filter=">"),
}


@pytest.mark.parametrize(("what", "call"), ENDLESS.items(), ids=ENDLESS.keys())
async def test_listing_without_end_is_a_protocol_error(
    what: str, call: Callable[[JetStream], Awaitable[object]]
) -> None:
    number = 0

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        nonlocal number
        number += 1
        answer: dict[str, object] = {"total": 2**63 - 1}
        if b".NAMES" in subject:
            answer["streams"] = [f"S{number}"]
        elif b".LIST" in subject:
            answer |= {
                "streams": [STREAM_INFO | {"created": f"2026-11-22T11:33:{number % 60:02}Z"}],
                "missing": [f"S{number}"],
            }
        else:
            answer |= {**STREAM_INFO, "state": {"subjects": {f"s{number}": 1}}}
        return msg(reply, sid, json.dumps(answer).encode())

    with FakeNats(script=script).running() as server:
        async with connection(server.url) as nc, asyncio.timeout(60):
            with pytest.raises(ServerProtocolError, match=f"listed more than 100 {what}: raise max_listed"):
                await call(JetStream(nc, max_listed=100))
    assert number == 101


@pytest.mark.parametrize(
    "text", [b"408 Request Timeout", b"404 No Messages", b"999 x", b"409 Leadership Change"]
)
async def test_consumer_pauses_if_every_pull_is_ended_at_once(text: bytes) -> None:
    pulls = 0

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        nonlocal pulls
        if b".MSG.NEXT." not in subject:
            return usual(subject.replace(b"CONSUMER.INFO", b"CONSUMER.CREATE"), reply, sid)
        pulls += 1
        return status(reply, sid, text)

    with FakeNats(script=script).running() as server:
        async with connection(server.url) as nc:
            consumer = await JetStream(nc).create_consumer("S", ConsumerConfig(name="C"))
            assert consumer.cached_info == ConsumerInfo.from_json(CONSUMER_INFO)
            async with consumer.messages() as messages:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(2.0):
                        await messages.next()
    assert pulls < 50


@pytest.mark.parametrize(
    ("end", "outcome"), [(b"408 Request Timeout", Batch), (b"423 Nats-Wrong-Pin-Id", CallTimeoutError)]
)
async def test_fetch_pauses_between_pulls_that_end_at_once(end: bytes, outcome: type) -> None:
    config = {"max_expires": 1_000_000_000, "priority_policy": "pinned_client", "priority_groups": ["a"]}
    info = json.loads(json.dumps(CONSUMER_INFO))
    info["config"] |= config
    pulls = 0

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        nonlocal pulls
        if b".CONSUMER.MSG.NEXT." in subject:
            pulls += 1
            return status(reply, sid, end)
        if b".CONSUMER.INFO." in subject:
            return msg(reply, sid, json.dumps(info).encode())
        return usual(subject, reply, sid)

    with FakeNats(script=script).running() as server:
        async with connection(server.url) as nc, JetStream(nc) as js:
            consumer = await js.consumer("S", "C")
            (found,) = await asyncio.gather(
                consumer.fetch(10, expires=2.0, group="a"), return_exceptions=True
            )
    assert type(found) is outcome
    assert 1 < pulls <= 100  # 0.1 s between two, for 2 or 7 s
