"""Permissions of docs/operating.md: each role can do its work and no more, and no line is superfluous.

The configurations are taken from the page. The work of the roles is in operating_roles.py. nats-server does
not answer what it refuses. It reports a violation to the connection, and the tests wait for that report.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from liftenvelope import bulk
from liftenvelope.errors import CallTimeoutError, PermissionDeniedError
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import Consumer, JetStream, StreamConfig
from liftenvelope.nats import AckInbox
from liftenvelope.testing import LiftbridgeAdmin, NatsServer, run_nats_server
from tests.integration.conftest import connect
from tests.integration.gateway.test_serve import publish, serving

from .operating_roles import DURABLE, GROUP, PASSWORD, ROLES, STREAM, SUBJECTS, Site, follower, prepare

PAGE: Final = (Path(__file__).resolve().parents[3] / "docs" / "operating.md").read_text("utf-8")
BLOCKS: Final = re.findall(r"^```\n((?:[A-Z_]+|users) = .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Rights:
    """The permissions of a role, as the page has them."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool

    def without_each(self) -> Iterator[tuple[str, Rights]]:
        """Each line, and the permissions without it."""
        for subject in self.publish:
            rest = tuple(other for other in self.publish if other != subject)
            yield f"publish {subject}", Rights(rest, self.subscribe, self.responses)
        for subject in self.subscribe:
            rest = tuple(other for other in self.subscribe if other != subject)
            yield f"subscribe {subject}", Rights(self.publish, rest, self.responses)
        if self.responses:
            yield "allow_responses", Rights(self.publish, self.subscribe, responses=False)

    def as_json(self) -> dict[str, object]:
        """As nats-server takes them. It takes an empty list of subjects for every subject."""
        found: dict[str, object] = {
            "publish": list(self.publish) or {"deny": [">"]},
            "subscribe": list(self.subscribe) or {"deny": [">"]},
        }
        return found | ({"allow_responses": True} if self.responses else {})


def rights_of(block: str) -> Rights:
    lists = dict(re.findall(r"(publish|subscribe) = \[(.*?)\]", block, re.DOTALL))
    publish, subscribe = (tuple(re.findall(r'"([^"]+)"', lists[name])) for name in ("publish", "subscribe"))
    return Rights(publish, subscribe, "allow_responses = true" in block)


RIGHTS: Final = {
    block.partition(" ")[0].lower(): rights_of(block) for block in BLOCKS if not block.startswith("users")
}


def test_the_page_has_every_role() -> None:
    assert set(RIGHTS) == {"admin", *ROLES}
    assert len(BLOCKS) == len(RIGHTS) + 1


@asynccontextmanager
async def site_of(server: NatsServer, role: str, number: str = "") -> AsyncIterator[Site]:
    site = Site(server.url, role, role + number, "admin" + number)
    try:
        await prepare(await site.connect_admin())
        yield site
    finally:
        await site.close()


@pytest.fixture
def page_server() -> Iterator[NatsServer]:
    """A nats-server with the page's configuration."""
    text = "\n".join(["authorization {", *BLOCKS, "}"])
    with run_nats_server(jetstream=True, config_text=text) as server:
        yield server


@pytest.mark.parametrize("role", ROLES)
async def test_role_does_its_work_with_its_permissions(role: str, page_server: NatsServer) -> None:
    async with site_of(page_server, role) as site, asyncio.timeout(240):
        await ROLES[role](site)
        await site.hear_all()
        assert site.violations.empty()


async def test_account_takes_the_blocks_of_the_page() -> None:
    text = "\n".join(["accounts { SHOP {", "jetstream: enabled", *BLOCKS, "} }"])
    with run_nats_server(jetstream=True, config_text=text) as server:
        async with site_of(server, "worker") as site, asyncio.timeout(240):
            await ROLES["worker"](site)


def test_command_serves_with_the_permissions_of_the_gateway(page_server: NatsServer) -> None:
    url = f"nats://gateway:{PASSWORD}@{page_server.address}"
    with serving("--nats", url, "--nats-inbox-prefix", "_INBOX.gateway") as (_, match):
        LiftbridgeAdmin([match[1]]).create_stream("payments", subject="payments.new")
        assert publish(match[1], "payments", b"first") == 0


# Each line

#: Each role, a line of it, and its permissions without that line.
LINES: Final = [(role, line, rights) for role in ROLES for line, rights in RIGHTS[role].without_each()]


@pytest.fixture(scope="module")
def lines_server() -> Iterator[NatsServer]:
    """A nats-server with an account for each line, in which the line's role lacks that line."""
    accounts = {}
    for number, (role, _, rights) in enumerate(LINES):
        user = {"user": f"{role}-{number}", "password": PASSWORD, "permissions": rights.as_json()}
        admin = {"user": f"admin-{number}", "password": PASSWORD}
        accounts[f"line-{number}"] = {"jetstream": "enabled", "users": [admin, user]}
    with run_nats_server(jetstream=True, config={"accounts": accounts}) as server:
        yield server
        # A clean stop takes its time for so many accounts.
        server.kill()


@pytest.mark.parametrize("number", range(len(LINES)), ids=[f"{role} {line}" for role, line, _ in LINES])
async def test_each_line_is_needed(number: int, lines_server: NatsServer) -> None:
    role, line, _ = LINES[number]
    async with site_of(lines_server, role, f"-{number}") as site, asyncio.timeout(240):
        assert await first_refusal(site), f"{role} needs no line {line!r}"


async def first_refusal(site: Site) -> str:
    """Do the role's work until the server refuses something; return what it said, or ""."""
    work = asyncio.create_task(ROLES[site.role](site))
    refusal = asyncio.create_task(site.violations.get())
    await asyncio.wait({work, refusal}, return_when=asyncio.FIRST_COMPLETED)
    if refusal.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return refusal.result()
    await site.hear_all()
    # The report may have come in the turn in which the work failed because of it.
    if refusal.done():
        await asyncio.gather(work, return_exceptions=True)
        return refusal.result()
    refusal.cancel()
    try:
        await work
    except PermissionDeniedError as exc:  # of bulk, whose connection is its own
        return str(exc)
    return ""


@pytest.fixture
def member_server() -> Iterator[NatsServer]:
    """A nats-server whose members of groups lack the line of STREAM.MSG.GET."""
    lines = dict(RIGHTS["member"].without_each())
    rights = lines["publish $JS.API.STREAM.MSG.GET.ORDERS"].as_json()
    member = {"user": "member", "password": PASSWORD, "permissions": rights}
    accounts = {
        "one": {"jetstream": "enabled", "users": [{"user": "admin", "password": PASSWORD}, member]},
    }
    with run_nats_server(jetstream=True, config={"accounts": accounts}) as server:
        yield server


async def test_member_that_starts_at_new_messages_needs_no_message_get(member_server: NatsServer) -> None:
    async with site_of(member_server, "member") as site, asyncio.timeout(240):
        await follower(site)
        await site.hear_all()
        assert site.violations.empty()


async def test_member_that_starts_at_the_newest_message_needs_message_get(member_server: NatsServer) -> None:
    async with site_of(member_server, "member") as site, asyncio.timeout(240):
        admin, nc = await site.connect_admin(), await site.connect()
        topic = JetStreamTopic.of_stream(STREAM, SUBJECTS)
        async with Coordinator(admin):
            with pytest.raises(CallTimeoutError):
                await GroupConsumer(nc, GROUP, topic, auto_offset="latest", timeout=5).open()
        await site.hear_all()
        assert "$js.api.stream.msg.get.orders" in (await site.violations.get()).lower()


# Neighbours

#: What no role but the administrator may do.
NOBODY: Final = (
    "pub $JS.API.STREAM.PURGE.ORDERS",
    "pub $KV.other.key",
    "pub elsewhere",
    "sub >",
    "sub _INBOX.>",
    "sub _INBOX.admin.>",
    "sub $JS.API.>",
    "sub orders.*",
)
#: What no role may do but the gateway as well.
MANAGING: Final = (
    "pub $JS.API.STREAM.CREATE.NEW",
    "pub $JS.API.STREAM.UPDATE.ORDERS",
    "pub $JS.API.STREAM.DELETE.ORDERS",
    "pub $JS.API.STREAM.MSG.DELETE.ORDERS",
    "pub $JS.API.STREAM.MSG.GET.KV_lift_streams",
    "pub $JS.API.DIRECT.GET.KV_lift_streams",
    "pub $JS.API.CONSUMER.CREATE.lift_payments_0.x",
    "pub $KV.lift_streams.payments",
    "pub _lift.activity",
    "pub $JS.ACK.lift_payments_0.acks.1.1.1.1.0",
    "sub _lift.>",
    "sub payments.>",
)
READING: Final = (
    "pub $JS.API.STREAM.MSG.GET.ORDERS",
    "pub $JS.API.DIRECT.GET.ORDERS",
    "pub $JS.API.CONSUMER.CREATE.ORDERS.x",
    "pub $JS.API.CONSUMER.DELETE.ORDERS.packing",
    "pub $JS.API.CONSUMER.MSG.NEXT.ORDERS.other",
)
#: What else each role may not do.
FORBIDDEN: Final[dict[str, tuple[str, ...]]] = {
    "gateway": ("pub orders.0", "pub $JS.API.STREAM.SNAPSHOT.ORDERS", "sub _INBOX.publisher.>"),
    "publisher": (*MANAGING, *READING, "pub orders.0", "pub _INBOX.gateway.x"),
    "jetstream_publisher": (*MANAGING, *READING, "pub payments.new", "pub $JS.API.STREAM.INFO.ORDERS"),
    "worker": (*MANAGING, *READING, "pub orders.0", "pub payments.new", "pub $JS.ACK.ORDERS.other.1.1.1.1.0"),
    "reader": (*MANAGING, "pub orders.0", "pub payments.new", "pub $JS.ACK.ORDERS.packing.1.1.1.1.0"),
    "bulk_reader": (*MANAGING, *READING[:2], "pub orders.0", "pub $JS.ACK.ORDERS.packing.1.1.1.1.0"),
    "bulk_direct_reader": (*MANAGING, *READING[2:], "pub orders.0"),
    "bulk_writer": (*MANAGING, *READING, "pub payments.new"),
    "coordinator": (
        *MANAGING,
        *READING[1:],
        "pub orders.0",
        "pub $JS.API.STREAM.DELETE.KV_liftenvelope-groups",
    ),
    "member": (
        *MANAGING,
        "pub orders.0",
        "pub $KV.liftenvelope-groups.group.billing",
        "pub liftenvelope.groups.changed.billing",
        "pub liftenvelope.groups.at.x.DeleteGroup",
        "pub liftenvelope.groups.at.x.RewindConsumer",
        "sub liftenvelope.groups.any.*",
    ),
    "watcher": (*MANAGING, *READING, "pub orders.0", "pub payments.new"),
    "monitor": (*MANAGING[:4], "pub orders.0", "pub $JS.API.CONSUMER.MSG.NEXT.ORDERS.packing"),
    "archiver": (*MANAGING, *READING[:2], "pub orders.0", "pub $JS.ACK.ORDERS.packing.1.1.1.1.0"),
    "backup": (*MANAGING, *READING, "pub orders.0", "pub $JS.API.STREAM.RESTORE.ORDERS"),
    "restore": (*MANAGING, *READING, "pub orders.0", "pub $JS.API.STREAM.SNAPSHOT.RESTORED"),
}


@pytest.mark.parametrize("role", ROLES)
async def test_role_may_not_do_what_its_neighbours_do(role: str, page_server: NatsServer) -> None:
    async with site_of(page_server, role) as site, asyncio.timeout(240):
        nc = await site.connect()
        forbidden = {*NOBODY, *FORBIDDEN[role]}
        for one in forbidden:
            verb, _, subject = one.partition(" ")
            if verb == "pub":
                await nc.publish(subject, b"")
            else:
                await nc.subscribe(subject)
        refused = {forbidden_by(await site.violations.get()) for _ in forbidden}
        assert refused == {one.lower() for one in forbidden}


def forbidden_by(violation: str) -> str:
    """Return the action and subject of a violation, as in FORBIDDEN. nats-py reports it in lower case."""
    found = re.search(r'permissions violation for (pub|sub)\w+ to "([^"]+)"', violation)
    assert found, violation
    return f"{found[1]} {found[2]}"


# Errors


async def reason(kind: type[TimeoutError], call: Callable[[float], Awaitable[object]]) -> str:
    """Return what the server said about a call that timed out; "" if it said nothing in a minute.

    The report of a violation may come after the end of a short timeout, so the timeout doubles.
    """
    for timeout in (1, 2, 4, 8, 16, 32):
        with pytest.raises(kind) as caught:
            await call(timeout)
        if said := str(caught.value).partition("; the server said: ")[2]:
            return said
    return ""


def violation(subject: str, verb: str = "publish") -> str:
    """Return how the report of a violation begins. nats-py reports it in lower case."""
    return f'nats: permissions violation for {verb} to "{subject}'.lower()


@asynccontextmanager
async def worker_on(server: NatsServer, **options: str) -> AsyncIterator[JetStream]:
    """JetStream of the role worker."""
    nc = await connect(server.url, user="worker", password=PASSWORD, **options)
    async with JetStream(nc) as js:
        yield js
    await nc.close()


async def test_request_that_is_refused(page_server: NatsServer) -> None:
    async with worker_on(page_server, inbox_prefix="_INBOX.worker") as js:
        async with asyncio.timeout(240):  # at once, not after the timeout of the request
            with pytest.raises(CallTimeoutError) as caught:
                await js.stream(STREAM, timeout=3_600)
        said = str(caught.value).partition("; the server said: ")[2]
        assert said.startswith(violation("$JS.API.STREAM.INFO.ORDERS"))


async def test_inbox_that_is_refused(page_server: NatsServer) -> None:
    async with worker_on(page_server) as js:
        said = await reason(CallTimeoutError, lambda timeout: js.consumer(STREAM, DURABLE, timeout=timeout))
        assert said.startswith(violation("_INBOX.", "subscription"))


async def test_publish_that_is_refused(page_server: NatsServer) -> None:
    async with worker_on(page_server, inbox_prefix="_INBOX.worker") as js:
        async with asyncio.timeout(240):  # at once, not after the timeout of the publish
            with pytest.raises(PermissionDeniedError, match=re.escape("publish on 'orders.0'")):
                await js.publish("orders.0", b"", timeout=3_600)
        async with AckInbox(js.api.nc) as inbox, asyncio.timeout(240):
            with pytest.raises(PermissionDeniedError, match=re.escape("publish on 'payments.new'")):
                await inbox.publish("payments.new", b"", timeout=3_600)


async def test_pull_and_direct_get_that_are_refused(page_server: NatsServer) -> None:
    async with site_of(page_server, "watcher") as site:
        durable = await JetStream(await site.connect_admin()).consumer(STREAM, DURABLE)
        js = JetStream(await site.connect())
        stream = await js.stream(STREAM)
        said = await reason(CallTimeoutError, lambda timeout: stream.get_message(1, timeout=timeout))
        assert said.startswith(violation("$JS.API.DIRECT.GET.ORDERS"))
        consumer = Consumer(js.api, durable.cached_info)
        said = await reason(CallTimeoutError, lambda timeout: consumer.fetch(1, expires=timeout))
        assert said.startswith(violation("$JS.API.CONSUMER.MSG.NEXT.ORDERS.packing"))


async def test_group_that_is_refused(page_server: NatsServer) -> None:
    async with worker_on(page_server, inbox_prefix="_INBOX.worker") as js:
        topic = JetStreamTopic.of_stream(STREAM, SUBJECTS)

        async def join(timeout: float) -> None:
            await GroupConsumer(js.api.nc, GROUP, topic, timeout=timeout).open()

        assert (await reason(CallTimeoutError, join)).startswith(violation("liftenvelope.groups."))


def test_bulk_that_is_refused(page_server: NatsServer) -> None:
    access = bulk.Access(user="worker", password=PASSWORD, inbox_prefix="_INBOX.worker")
    with pytest.raises(PermissionDeniedError, match=re.escape("$JS.API.STREAM.INFO.ORDERS")):
        bulk.read(page_server.url, STREAM, access=access)


# What permissions can't do


async def test_answers_go_to_any_subject_that_the_asker_names(page_server: NatsServer) -> None:
    """Why the page calls an account one circle of trust. If this fails, nats-server has become stricter."""
    async with site_of(page_server, "reader") as site, asyncio.timeout(240):
        async with JetStream(await site.connect_admin()) as js:
            bucket = await js.create_stream(StreamConfig(name="KV_v", subjects=("$KV.v.>",)))
            nc = await site.connect()
            await nc.publish("$JS.API.DIRECT.GET.ORDERS", b'{"seq":1}', reply="$KV.v.key")
            while not (await bucket.info()).state.messages:
                await asyncio.sleep(0.05)
            assert (await bucket.get_message(1)).data == b"order 0"
        assert site.violations.empty()
