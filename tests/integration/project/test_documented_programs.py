"""Programs and test files of the documentation's pages, run as a reader would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.project.test_examples import Block, of_kind, run, run_pytest


@pytest.mark.parametrize("block", of_kind("python"), ids=str)
def test_program(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(block.text, "utf-8")
    printed = run(file, cwd=tmp_path)
    if block.output is not None:
        assert printed == block.output


@pytest.mark.parametrize("block", of_kind("python pytest"), ids=str)
def test_test_file(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "test_block.py"
    file.write_text(block.text, "utf-8")
    assert " passed" in run_pytest(file, tmp_path)
