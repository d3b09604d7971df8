"""Output of a campaign: its progress, faults that were found, and the table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.faults.plan import KINDS, Plan
from tests.faults.running import Result

__all__ = ["command_of", "progress_line", "summary"]


def command_of(plan: Plan, scale: float) -> str:
    """Return the command that repeats a run."""
    end = "" if scale == 1 else f" --scale {scale:g}"
    return f"python -m tests.faults --seed {plan.seed} --path {plan.path} --scene {plan.scene}{end}"


def progress_line(result: Result, acked: int, faults: int) -> str:
    """Return one line about a run that has ended.

    Args:
        result: The run.
        acked: How many messages were acked so far, in all runs.
        faults: How many faults were carried out so far.
    """
    plan = result.plan
    verdict = f"{len(result.violations)} WRONG" if result.violations else "ok"
    return (
        f"seed {plan.seed:>5}  {plan.path:<19} {plan.scene:<12} {result.acked:>9,} acked "
        f"{sum(result.faults.values()):>2} faults {result.seconds:>6.1f} s  {verdict}"
        f"  (so far {acked:,} acked, {faults:,} faults)"
    )


def summary(results: Sequence[Result]) -> str:
    """Return the table at the end of a campaign."""
    faults = _total(result.faults for result in results)
    errors = _total(result.errors for result in results)
    wrong = sum(bool(result.violations) for result in results)
    longest, call = max((result.longest for result in results), default=(0.0, "none"))
    lines = [
        "",
        f"{'path':<20}{'servers':<14}{'seeds':>6}{'acked':>14}{'stored rows':>14}{'faults':>8}{'wrong':>7}",
    ]
    for path, scene in sorted({(result.plan.path, result.plan.scene) for result in results}):
        some = [one for one in results if (one.plan.path, one.plan.scene) == (path, scene)]
        lines.append(_row(path, scene, some))
    lines += [
        _row("all", "", results),
        "",
        "faults by kind: " + ", ".join(f"{faults[kind]} {kind}" for kind in KINDS if faults[kind]),
        "errors raised: " + ", ".join(f"{count:,} {name}" for name, count in errors.most_common()),
        f"longest call: {longest:.1f} s ({call})",
        f"seeds: {len(results)}, wrong: {wrong}",
    ]
    return "\n".join(lines)


def _row(path: str, scene: str, some: Sequence[Result]) -> str:
    acked, stored = sum(one.acked for one in some), sum(one.stored for one in some)
    faults = sum(sum(one.faults.values()) for one in some)
    wrong = sum(bool(one.violations) for one in some)
    return f"{path:<20}{scene:<14}{len(some):>6}{acked:>14,}{stored:>14,}{faults:>8}{wrong:>7}"


def _total(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total
