"""Run the campaign from the command line.

python -m tests.faults --seeds 200              # `make soak`
python -m tests.faults --minutes 30             # as many seeds as fit
python -m tests.faults --seed 17 --path group   # one run again
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from tests.faults.paths import run_any
from tests.faults.plan import OPT_IN, PATHS, SCENES, Plan, make_plan
from tests.faults.report import command_of, progress_line, summary
from tests.faults.running import Result, Run

#: Seconds after which a run hangs.
_LIMIT: Final = 900
#: Seconds between two lines about a run that goes on.
_OFTEN: Final = 20.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, help="number of seeds; default 1, with --minutes no limit")
    parser.add_argument("--seed", type=int, default=0, help="the first of them; default 0")
    parser.add_argument("--minutes", type=float, help="begin no seed after this time")
    parser.add_argument("--path", choices=[*PATHS, *OPT_IN], help="one path alone; default: all in turn")
    parser.add_argument("--scene", choices=SCENES, help="these servers alone; default: those of the seed")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages")
    options = parser.parse_args()
    allowed = {**PATHS, **OPT_IN}[options.path].scenes if options.path else ()
    if options.scene and options.scene not in allowed:
        parser.error(f"--scene needs a --path that has it; {options.path} runs on {', '.join(allowed)}")
    return options


def _plans(options: argparse.Namespace) -> Iterator[Plan]:
    """The plans of a campaign; without end where only time ends it."""
    endless = options.minutes is not None and options.seeds is None
    count = 1 if options.seeds is None else options.seeds
    seeds = itertools.count(options.seed) if endless else range(options.seed, options.seed + count)
    return (make_plan(seed, options.path, scale=options.scale, scene=options.scene) for seed in seeds)


class _Ticker:
    """Prints how far a run is, now and then."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def watch(self, run: Run) -> None:
        """Begin with a run."""
        self._ended = threading.Event()
        threading.Thread(target=self._print, args=(run, self._ended), daemon=True).start()

    def stop(self) -> None:
        """End it."""
        self._ended.set()

    def _print(self, run: Run, ended: threading.Event) -> None:
        while not ended.wait(_OFTEN):
            faults = sum(run.injector.done.values())
            print(f"    {run.ledger.acked:,} acked, {faults} faults carried out", flush=True)


def main() -> int:
    """Run a campaign; return 1 where anything is wrong."""
    options = _options()
    results: list[Result] = []
    acked = faults = 0
    began, ticker = time.monotonic(), _Ticker()
    for plan in _plans(options):
        if options.minutes is not None and time.monotonic() - began > options.minutes * 60:
            break
        print(f"{plan}: {'; '.join(map(str, plan.faults))}", flush=True)
        print(f"    {command_of(plan, options.scale)}", flush=True)
        faulthandler.dump_traceback_later(_LIMIT, exit=True)
        result = run_any(plan, ticker.watch)
        faulthandler.cancel_dump_traceback_later()
        ticker.stop()
        results.append(result)
        acked, faults = acked + result.acked, faults + sum(result.faults.values())
        print(progress_line(result, acked, faults), flush=True)
        for text in result.violations:
            print(f"    WRONG: {text}", flush=True)
    print(summary(results))
    wrong = [result for result in results if result.violations]
    for result in wrong:
        print(f"repeat with: {command_of(result.plan, options.scale)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
