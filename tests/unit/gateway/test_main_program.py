"""``python -m liftenvelope.gateway``, the program that liftenvelope.testing starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from liftenvelope.gateway.__main__ import main

FILES = {"missing": None, "no JSON": "{"}


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["gateway", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def test_help_names_the_file_and_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: python -m liftenvelope.gateway [-h] FILE")
    assert "liftenvelope serve" in " ".join(said.split())


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_file_that_can_not_be_used_is_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: str | None,
) -> None:
    file = tmp_path / "gateway.json"
    if content is not None:
        file.write_text(content)
    assert exit_code(monkeypatch, str(file)) == 2
    assert capsys.readouterr().err.splitlines()[-1] != ""
