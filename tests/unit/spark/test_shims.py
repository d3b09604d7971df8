"""The packages that Spark imports to find formats: they must never fail, or Spark finds no format at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[{missing!r}] = None
import pyspark_jetstream, pyspark_liftbridge
assert not hasattr(pyspark_jetstream, "DefaultSource")
assert not hasattr(pyspark_liftbridge, "DefaultSource")
from liftenvelope.errors import MissingExtraError
try:
    from liftenvelope.spark import register
    register(None)
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_the_extra(missing: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(missing=missing)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"this needs {missing}: run pip install 'liftenvelope[" in done.stdout
