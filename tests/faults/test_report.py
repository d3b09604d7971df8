"""The command line: its exit status, the command that repeats a seed, and the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults import __main__ as program
from tests.faults.plan import Plan
from tests.faults.running import Result, Run


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[int, Result]:
    """Results by seed, which stand for runs on servers."""
    made: dict[int, Result] = {}

    def run(plan: Plan, started: Callable[[Run], None]) -> Result:
        violations = ["1 acked messages that are lost: message 7"] if plan.seed == 8 else []
        result = Result(
            plan, 1_000, 1_001, Counter(kill=2), Counter(TransportError=3), violations, (2.5, "x"), 1
        )
        made[plan.seed] = result
        return result

    monkeypatch.setattr(program, "run_any", run)
    return made


def test_sound_runs_end_with_status_0(
    results: dict[int, Result], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["faults", "--seeds", "3", "--seed", "5"])
    assert program.main() == 0
    assert list(results) == [5, 6, 7]
    printed = capfd.readouterr().out
    assert "seeds: 3, wrong: 0" in printed
    assert "(so far 3,000 acked, 6 faults)" in printed
    assert "faults by kind: 6 kill" in printed
    assert "errors raised: 9 TransportError" in printed
    assert "longest call: 2.5 s (x)" in printed


def test_a_wrong_run_ends_with_status_1_and_the_command_that_repeats_it(
    results: dict[int, Result], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["faults", "--seeds", "2", "--seed", "7", "--scale", "0.5"])
    assert program.main() == 1
    printed = capfd.readouterr().out
    assert "WRONG: 1 acked messages that are lost: message 7" in printed
    plan = results[8].plan
    command = f"python -m tests.faults --seed 8 --path {plan.path} --scene {plan.scene} --scale 0.5"
    assert f"repeat with: {command}\n" in printed


def test_a_scene_that_the_path_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["faults", "--path", "bulk-fast", "--scene", "gateway1"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert "bulk-fast runs on nats1, nats3" in capfd.readouterr().err
