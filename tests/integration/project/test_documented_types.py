"""Types of all code of the documentation's pages and of the examples: ``make types`` runs this."""

from __future__ import annotations

from pathlib import Path

from tests.integration.project.test_examples import ALL, EXAMPLES, ROOT, run


def test_types(tmp_path: Path) -> None:
    """All of it passes mypy --strict, so no page shows an argument that does not exist."""
    files = list(map(str, EXAMPLES))
    for block in ALL:
        if block.info.startswith("python"):
            file = tmp_path / f"{block.page.stem.lower()}_{block.line}.py"
            file.write_text(block.as_module(), "utf-8")
            files.append(str(file))
    run("-W", "ignore", "-m", "mypy", "--strict", *files, cwd=ROOT)
