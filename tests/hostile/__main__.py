"""Run the attacks from the command line; print what each has cost. Exit status 1: one has succeeded.

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
from tests.hostile.clients_running import SERVERS, ClientVictims
from tests.hostile.hostile_servers import HostileServer
from tests.hostile.running import Figures, Victim, run_attack
from tests.hostile.tables import GATEWAY
from tests.hostile.tls import Certificates

#: Times the latency at rest that a bystander's median may reach under attack.
_MOST_RATIO: Final = 3.0
#: Milliseconds below which a ratio says nothing: attacker, victim and bystander share the processors.
_LEAST_MS: Final = 20.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--attack", default="", help="attacks whose names begin so; default: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each on a gateway; default 4")
    parser.add_argument("--list", action="store_true", help="print the names of the attacks and end")
    return parser.parse_args()


def _print(figures: Figures) -> None:
    outcome = figures.outcome
    kinds = {
        "goaway": outcome.goaways,
        "reset": outcome.resets,
        "status": outcome.statuses,
        "http": outcome.http,
    }
    shown = " ".join(f"{kind}:{dict(counts)}" for kind, counts in kinds.items() if counts)
    print(
        f"{figures.name:50} {figures.rest:8.1f} {figures.attacked:8.1f} {figures.ratio:6.1f}"
        f" {figures.rss_mib:7.1f} {figures.descriptors:4d} {figures.log_lines:4d}"
        f" {outcome.pieces:8d} {f'{outcome.closed}/{outcome.opened}':>13}"
        f" {'FALLS' if figures.faults else 'holds'} {shown}",
        flush=True,
    )
    for fault in figures.faults:
        print(f"    {fault}", flush=True)


def _attack_gateways(rows: list[Attack], seconds: float) -> list[str]:
    """Attack gateways; return the names of the attacks that have succeeded."""
    extent, fell = Extent(seconds, 0, sys.maxsize), list[str]()
    print(
        f"{'attack on a gateway':50} {'p50 rest':>8} {'attacked':>8} {'ratio':>6} {'MiB':>7} {'fds':>4}"
        f" {'log':>4} {'sent':>8} {'closed/opened':>13} verdict"
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
                    if figures.ratio > _MOST_RATIO and figures.attacked > _LEAST_MS:
                        figures.faults.append(f"the bystander's median latency rose {figures.ratio:.0f}-fold")
                    _print(figures)
                    fell += [row.name] * bool(figures.faults)
    return fell


def _attack_clients(rows: list[HostileServer]) -> list[str]:
    """Attack clients; return the names of the servers that have succeeded."""
    fell = dict[str, None]()
    print(f"{'attack on a client':50} {'call':24} {'error':24} {'MiB':>7} {'s':>5} verdict")
    with ClientVictims() as victims:
        for row in rows:
            for call in row.calls:
                figures = victims.attack(row, call)
                print(
                    f"{row.name:50} {call:24} {figures.error:24} {figures.mib:7.1f} {figures.seconds:5.1f}"
                    f" {'FALLS' if figures.faults else 'holds'} {'; '.join(figures.faults)}",
                    flush=True,
                )
                if figures.faults:
                    fell[row.name] = None
    return list(fell)


def main() -> int:
    """Run the attacks; return 1 if one has succeeded."""
    options = _options()
    gateways = [row for row in GATEWAY if row.name.startswith(options.attack)]
    servers = [row for row in SERVERS if row.name.startswith(options.attack)]
    if options.list or not gateways + servers:
        print("\n".join([row.name for row in GATEWAY] + [row.name for row in SERVERS]))
        return 0 if options.list else 2
    fell = _attack_gateways(gateways, options.seconds) if gateways else []
    fell += _attack_clients(servers) if servers else []
    for name in fell:
        print(f'repeat with: python -m tests.hostile --attack "{name}" --seconds {options.seconds:g}')
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
