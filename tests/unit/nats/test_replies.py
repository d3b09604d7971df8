"""Reply subjects that a responder answers."""

from __future__ import annotations

import pytest

from liftenvelope.nats.replies import ReplySubjects

HOSTILE = [
    "",
    "orders",
    "_INBOX",
    "_INBOX.*",
    "_INBOX.a..b",
    "_INBOX.a b",
    "_INBOX.a\r\nPUB b",
    "$JS.API.STREAM.DELETE.orders",
    "$KV.lift_streams.orders",
    "_lift.activity",
    "liftenvelope.groups.any.Leave",
    "_GR_.a.b.$JS.API.STREAM.DELETE.orders",
    "_GR_.a.b.orders",
    "_GR_.a",
    "_GR_.*.>._INBOX.c",
    "_GR_.a.._INBOX.c",
    "_GR_.a b.c._INBOX.c",
    "team",
    "teams.a",
]


@pytest.mark.parametrize("reply", HOSTILE)
def test_reply_subject_that_is_no_inbox_gets_no_answer(reply: str) -> None:
    assert not ReplySubjects(["team."]).allows(reply)


@pytest.mark.parametrize(
    "reply", ["_INBOX.a", "_INBOX.a.1", "_INBOX_ann.1", "team.a.1", "_R_.a.b", "_GR_.a.b._INBOX.c.1"]
)
def test_inboxes_of_clients_get_answers(reply: str) -> None:
    assert ReplySubjects(["team."]).allows(reply)


def test_any_subject_that_is_not_internal_can_be_allowed() -> None:
    replies = ReplySubjects([">"])
    assert replies.allows("orders")
    assert not replies.allows("$KV.lift_streams.orders")
    assert not replies.allows("_GR_.a.b.$JS.API.INFO")
