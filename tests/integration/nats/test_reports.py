"""Permissions that a server refuses, and the subjects in its reports, which it quotes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.nats import accelerate
from liftenvelope.nats.link import Link
from liftenvelope.nats.reports import ViolationWatch, read_refusals
from liftenvelope.nats.subscribing import subscribing_on
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect

#: Subjects that nats-server writes with escapes, and some that it does not.
SUBJECTS = (
    'A"B',
    'A"',
    "A\\B",
    "A\\x41",
    '\\"A',
    "'A'",
    "\x01A",
    "A\x7f",
    "A\a\b\f\v",
    "\xc4rger.\u65e5\u672c",
    "A\xa0B",
    "\u200bA",
    "\U0001f600A",
    "\U000f0000",
)
DENIED = {"publish": {"deny": [">"]}, "subscribe": {"deny": ["*", "*.*"]}}
USERS = {"authorization": {"users": [{"user": "u", "password": "p", "permissions": DENIED}]}}


@pytest.mark.parametrize("is_accelerated", [False, True], ids=["plain", "accelerated"])
async def test_refused_publishes_are_told_with_the_subjects_of_the_publishes(is_accelerated: bool) -> None:
    refused: list[str] = []
    all_refused = asyncio.Event()

    def note(subjects: Mapping[str, int]) -> None:
        refused.extend(subjects)
        if len(refused) >= len(SUBJECTS):
            all_refused.set()

    with run_nats_server(config=USERS) as server:
        nc = await connect(server.url, user="u", password="p")
        if is_accelerated:
            accelerate(nc)
        stop = read_refusals(nc, note)
        for subject in SUBJECTS:
            await nc.publish(subject)
        async with asyncio.timeout(120):
            await all_refused.wait()
        stop()
        await nc.close()
    assert refused == list(SUBJECTS)


@pytest.mark.parametrize("subject", SUBJECTS[:-1])  # whose escape is ambiguous in lower case
async def test_refusal_of_a_publish_or_subscription_is_found_by_its_subject(subject: str) -> None:
    with run_nats_server(config=USERS) as server:
        nc = await connect(server.url, user="u", password="p")
        link = Link(nc)
        with (
            ViolationWatch(nc, "publish", subject) as watch,
            ViolationWatch(nc, "publish", f"{subject}x") as other,
        ):
            await nc.publish(subject)
            await nc.publish("another")  # whose refusal is the last one that nats-py keeps
            await link.barrier(60.0)
        assert watch.report
        assert not other.report
        async with subscribing_on(nc, subject) as subscribing:
            await nc.subscribe(subject)
            await link.barrier(60.0)
            with pytest.raises(PermissionDeniedError):
                subscribing.check()
        await nc.close()
