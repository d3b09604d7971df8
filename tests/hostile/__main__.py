"""Run the attacks from the command line; print what each has cost.

python -m tests.hostile                                  # all of them: `make soak`
python -m tests.hostile --attack "rapid reset"           # those whose names begin so
python -m tests.hostile --seconds 20                     # longer ones
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.hostile.attacking import Extent
from tests.hostile.attacks import Attack
from tests.hostile.running import Figures, Victim, run_attack
from tests.hostile.tables import GATEWAY
from tests.hostile.tls import Certificates

#: Times the latency at rest that a bystander's median may reach under attack.
_MOST_RATIO: Final = 3.0
#: Milliseconds below which a ratio says nothing.
_LEAST_MS: Final = 10.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--attack", default="", help="attacks whose names begin so; default: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each; default 4")
    parser.add_argument("--list", action="store_true", help="print the names of the attacks and end")
    return parser.parse_args()


def _check_latency(figures: Figures) -> None:
    if figures.ratio > _MOST_RATIO and figures.attacked > _LEAST_MS:
        figures.faults.append(f"the bystander's median latency rose {figures.ratio:.0f}-fold")


def _print(figures: Figures) -> None:
    outcome = figures.outcome
    answers = {"goaway": outcome.goaways, "reset": outcome.resets, "status": outcome.statuses, "http": outcome.http}
    shown = " ".join(f"{kind}:{dict(counts)}" for kind, counts in answers.items() if counts)
    print(
        f"{figures.name:50} {figures.rest:8.1f} {figures.attacked:8.1f} {figures.ratio:6.1f}"
        f" {figures.rss_mib:7.1f} {figures.descriptors:4d} {figures.log_lines:4d}"
        f" {outcome.pieces:8d} {outcome.closed:5d}/{outcome.opened:<5d}"
        f" {'FALLS' if figures.faults else 'holds'} {shown}",
        flush=True,
    )
    for fault in figures.faults:
        print(f"    {fault}", flush=True)


def main() -> int:
    """Run the attacks; return 1 if one has succeeded."""
    options = _options()
    rows: list[Attack] = [row for row in GATEWAY if row.name.startswith(options.attack)]
    if options.list or not rows:
        print("\n".join(row.name for row in GATEWAY))
        return 0 if options.list else 2
    extent, fell = Extent(options.seconds, 0, sys.maxsize), list[str]()
    print(
        f"{'attack':50} {'p50 rest':>8} {'attacked':>8} {'ratio':>6} {'MiB':>7} {'fds':>4} {'log':>4}"
        f" {'sent':>8} {'closed/opened':>11} verdict"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for secured in (False, True):
            these = [row for row in rows if bool(row.tls) is secured]
            if not these:
                continue
            with Victim(Certificates(folder) if secured else None) as victim:
                for row in these:
                    figures = run_attack(victim, row, extent)
                    _check_latency(figures)
                    _print(figures)
                    if figures.faults:
                        fell.append(row.name)
    for name in fell:
        print(f'repeat with: python -m tests.hostile --attack "{name}" --seconds {options.seconds:g}')
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
