"""Subjects that clients of a gateway may not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftenvelope.gateway._program.embedded_logins import Logins
from liftenvelope.gateway._protocol.subjects import check_published, check_recorded
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
            check_recorded(subject)
        with pytest.raises(RpcError, match="is internal"):
            check_published(subject.replace(">", "a"))


@pytest.mark.parametrize("subject", ["liftenvelope.*", "liftenvelope.group.>", "*", "lift.>", "orders.*.>"])
def test_subject_that_matches_no_internal_one_may_be_recorded(subject: str) -> None:
    check_recorded(subject)
