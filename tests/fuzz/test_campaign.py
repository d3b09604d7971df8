"""A bounded slice of the campaign that `make soak` runs whole, and proof that the machinery works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

#: The sanitized build takes minutes where others need the processors as well.
pytestmark = pytest.mark.timeout(900)
HERE = Path(__file__).parent
INPUTS = 100_000
#: Reads one byte behind a block, by the mistake that a bounds check prevents.
OUT_OF_BOUNDS = """
import ctypes
from liftenvelope import _fastenv
print(_fastenv.__file__, flush=True)
block = (ctypes.c_char * 8)()
ctypes.string_at(ctypes.addressof(block) + 8, 64)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module", autouse=True)
def build() -> None:
    done = run(str(HERE / "sanitized.py"), "build")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_slice() -> None:
    done = run(str(HERE / "campaign.py"), "--inputs", str(INPUTS))
    assert done.returncode == 0, done.stdout + done.stderr
    finished = re.findall(
        rf"(\w+) +{INPUTS:,} of {INPUTS:,} inputs .* (\d+)% taken +(\d+) edges", done.stdout
    )
    assert {decoder for decoder, _, _ in finished} == {"message", "ack", "stored", "response"}, done.stdout
    for _, taken, edges in finished:  # a mutator that breaks everything, or nothing, finds nothing
        assert 10 < int(taken) < 90
        assert int(edges) > 300


def test_a_slice_of_the_frames() -> None:
    done = run(str(HERE / "sanitized.py"), "run", "-m", "tests.fuzz.frames_campaign", "--inputs", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"300 inputs for each of \d+ targets: no fault", done.stdout)


def test_the_seed_is_enough_to_see_it_again() -> None:
    slices = [
        run(str(HERE / "campaign.py"), "--inputs", "12000", "--seed", "11", "--decoder", "ack") for _ in "ab"
    ]
    kept = [re.findall(r"(\d+%) taken +(\d+) edges +(\d+) inputs kept", done.stdout)[-1] for done in slices]
    assert kept[0] == kept[1]


def test_the_sanitizer_is_at_work(tmp_path: Path) -> None:
    script = tmp_path / "out_of_bounds.py"
    script.write_text(OUT_OF_BOUNDS)
    done = run(str(HERE / "sanitized.py"), "run", str(script))
    assert done.returncode != 0
    assert str(Path("build") / "sanitized") in done.stdout
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
