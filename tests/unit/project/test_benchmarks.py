"""The commands of ``make bench`` and ``make bench-spark`` start."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("package", ["benchmarks", "benchmarks.spark"])
def test_pytest_starts_with_the_settings_of_the_project(package: str) -> None:
    arguments = [sys.executable, "-m", package, "--markers"]
    done = subprocess.run(arguments, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "liftbridge_only" in done.stdout
