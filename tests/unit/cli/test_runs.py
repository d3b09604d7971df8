"""Runs of ``liftenvelope bench`` that are kept for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftenvelope.cli._runs import RunFiles

FILES = RunFiles(save=None, compare=None, no_history=False)


def test_last_hundred_calls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(105):
        FILES.keep({"count": 1}, {"target": number}, {"rate": number})
    assert len(list(tmp_path.rglob("*.json"))) == 100
    found = FILES.before({"count": 1}, {"target": 104})
    assert found is not None
    assert found.values == {"rate": 104}
    assert FILES.before({"count": 2}, {"target": 104}) is None


def test_relative_folder_of_the_environment_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the XDG Base Directory Specification says."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    FILES.keep({}, {}, {"rate": 1})
    assert [file.parent for file in tmp_path.rglob("*.json")] == [
        tmp_path / ".local/state/liftenvelope/bench"
    ]
