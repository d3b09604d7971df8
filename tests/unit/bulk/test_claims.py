"""Claims of archive runs: whether the process of another run has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from liftenvelope.bulk._archive import claims


@pytest.fixture
def owner() -> list[str]:
    """The owner of a claim whose process has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = claims._process(process.pid)
        assert not claims._is_gone(found)
        process.communicate(b"\n")
    return found


def test_run_whose_process_ended_is_gone(owner: list[str]) -> None:
    assert claims._is_gone(owner)
    assert claims._is_gone([*owner[:2], str(2**70), owner[3]])


def test_run_of_a_user_whose_processes_are_hidden_is_not_gone(
    owner: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAKE is the answer of the kernel: a test can't mount /proc with hidepid."""

    def kill(pid: int, signal: int) -> None:
        assert (pid, signal) == (int(owner[2]), 0)
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert not claims._is_gone(owner)


@pytest.mark.parametrize("owner", [None, [], ["a", "b", "1", "1"], "text"])
def test_run_elsewhere_is_not_gone(owner: object) -> None:
    assert not claims._is_gone(owner)
