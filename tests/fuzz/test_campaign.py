"""Proof that the campaign finds faults, by a short slice of it and by planted ones.

`make fuzz` runs these tests after 100,000 inputs per target, the same each time; `make soak` has ten million
new ones.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.target import TWINS
from tests.fuzz.targets import TARGETS

#: The sanitized build takes minutes where others need the processors as well.
pytestmark = pytest.mark.timeout(1_800)
HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "src"
INPUTS = 10_000
#: Enough to find five letters one after the other; without guidance it takes 256 ** 5.
UNTIL_FOUND = 20_000_000
DECODERS = ("message", "ack", "stored", "response")
#: Reads one byte behind a block, by the mistake that a bounds check prevents.
OUT_OF_BOUNDS = """
import ctypes
from liftenvelope._native import _fastenv
print(_fastenv.__file__, flush=True)
block = (ctypes.c_char * 8)()
ctypes.string_at(ctypes.addressof(block) + 8, 64)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, timeout=1_500
    )


def campaign(*options: str) -> subprocess.CompletedProcess[str]:
    return run(str(HERE / "campaign.py"), *options)


def last_lines(output: str) -> dict[str, tuple[int, int, int, int]]:
    """By target: inputs, the share that was taken, edges of the seeds, edges at the end."""
    line = re.compile(r"^(\S+) +([\d,]+) of \2 inputs .* (\d+)% taken  edges (\d+) -> (\d+)", re.MULTILINE)
    return {
        name: (int(done.replace(",", "")), int(taken), int(first), int(edges))
        for name, done, taken, first, edges in line.findall(output)
    }


@pytest.fixture(scope="module", autouse=True)
def build() -> None:
    done = run(str(HERE / "sanitized.py"), "build")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_extension_has_a_target() -> None:
    extensions = {path.stem for path in SOURCES.glob("*.pyx")}
    assert {target.extension for target in TARGETS.values()} == extensions == set(TWINS)


def test_no_processes_are_refused() -> None:
    """The campaign waited for ever for processes that it did not start."""
    done = campaign("--jobs", "0")
    assert done.returncode == 2
    assert "--jobs must be at least 1, got 0" in done.stderr


def test_a_slice_passes_and_coverage_grows() -> None:
    done = campaign("--inputs", str(INPUTS))
    assert done.returncode == 0, done.stdout + done.stderr
    finished = last_lines(done.stdout)
    assert set(finished) == set(TARGETS), done.stdout
    for name, (inputs, _, first, edges) in finished.items():
        assert inputs == INPUTS // TARGETS[name].share
        assert edges > first > 0, f"{name} reaches no edge that its seeds do not reach"
    for name in DECODERS:  # a mutator that breaks everything, or nothing, finds nothing
        assert 10 < finished[name][1] < 90


def test_coverage_guides_the_campaign_to_a_read_behind_the_end() -> None:
    done = campaign("--inputs", str(UNTIL_FOUND), "--target", "overread")
    assert done.returncode == 1, done.stdout
    # The byte behind the end is poisoned by the engine, or lies in a redzone.
    assert re.search("AddressSanitizer: (use-after-poison|heap-buffer-overflow)", done.stderr)
    assert re.search(r"last input b'.*OVERR", done.stdout)


def test_coverage_guides_the_campaign_to_a_difference_between_twins() -> None:
    done = campaign("--inputs", str(UNTIL_FOUND), "--target", "difference")
    assert done.returncode == 1, done.stdout
    assert "the extension makes 'found' of it, its twin None" in done.stderr
    found = re.search(r"^again: python tests/fuzz/campaign.py (.*)$", done.stdout, re.MULTILINE)
    assert found is not None
    again = campaign(*found[1].split())
    assert again.returncode == 1
    assert "the extension makes 'found' of it, its twin None" in again.stderr


@pytest.mark.parametrize("target", ["ack", "arrow-envelopes", "nats-rows", "queue"])
def test_the_same_seed_gives_the_same_inputs(target: str) -> None:
    slices = [campaign("--inputs", "8000", "--seed", "11", "--target", target) for _ in "ab"]
    kept = [re.findall(r"(\d+%) taken  edges (.*) inputs kept", done.stdout)[-1] for done in slices]
    assert kept[0] == kept[1]


def test_the_sanitizer_is_at_work(tmp_path: Path) -> None:
    script = tmp_path / "out_of_bounds.py"
    script.write_text(OUT_OF_BOUNDS)
    done = run(str(HERE / "sanitized.py"), "run", str(script))
    assert done.returncode != 0
    assert str(Path("build") / "sanitized") in done.stdout
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
