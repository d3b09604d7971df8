"""Subjects that clients of a gateway may not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftenvelope.gateway._program.embedded_logins import Logins
from liftenvelope.gateway._protocol.subjects import ClientSubjects
from liftenvelope.rpc.status import RpcError


def denied_to_publishers(folder: Path) -> list[str]:
    """Subjects that nats-server refuses to publishers, by the logins that the gateway gives it."""
    users = Logins(folder, open_to_publishers=True).configuration["authorization"]["users"]
    found: list[str] = users[-1]["permissions"]["publish"]["deny"]
    return found


def test_subjects_denied_to_publishers_are_refused_to_clients_of_the_gateway(tmp_path: Path) -> None:
    denied = denied_to_publishers(tmp_path)
    assert "liftenvelope.groups.>" in denied
    for subject in denied:
        with pytest.raises(RpcError, match="matches internal subjects"):
            ClientSubjects().check_recorded(subject)
        with pytest.raises(RpcError, match="is internal"):
            ClientSubjects().check_published(subject.replace(">", "a"))


@pytest.mark.parametrize("subject", ["liftenvelope.*", "liftenvelope.group.>", "*", "lift.>", "orders.*.>"])
def test_subject_that_matches_no_internal_one_may_be_recorded(subject: str) -> None:
    ClientSubjects().check_recorded(subject)


@pytest.mark.parametrize("subject", ["a.b.>", "a.b", "a.b.*", "a.*.c", "*.b.c", "a.>"])
def test_own_inboxes_of_the_gateway_may_not_be_recorded(subject: str) -> None:
    with pytest.raises(RpcError, match=r"matches internal subjects \(.*_INBOX\.\.\., a\.b\.\.\.\)"):
        ClientSubjects(["a.b.", "_INBOX.gateway."]).check_recorded(subject)


@pytest.mark.parametrize("subject", ["a.*", "a.bc.>", "a.c.*", "a"])
def test_neighbours_of_the_own_inboxes_may_be_recorded(subject: str) -> None:
    ClientSubjects(["a.b."]).check_recorded(subject)
