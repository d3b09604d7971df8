"""Runs programs of Spark in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "run_program"]

ROOT = Path(__file__).resolve().parents[2]


def run_program(*arguments: str, folder: Path) -> tuple[int, str]:
    """Run a program in a folder and a process group of its own; return its exit status and its output.

    Args:
        *arguments: Arguments of the interpreter.
        folder: Folder to run it in.
    """
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
        start_new_session=True,
    )
    return done.returncode, done.stdout
