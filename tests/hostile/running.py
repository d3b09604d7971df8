"""Runs attacks against gateways, with a bystander beside each, and gives the verdict."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self

import nats
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope.testing import GatewayCluster, run_gateway, run_nats_server
from tests.handled import handled
from tests.hostile.attacking import Extent, Outcome, attack
from tests.hostile.attacks import MARK, Attack
from tests.hostile.tls import Certificates
from tests.hostile.watching import Bystander, Watch, descriptors, until

__all__ = ["Figures", "Victim", "run_attack"]

#: Messages of the stream that readers read, and bytes of each.
_MESSAGES: Final = 200
_SIZE: Final = 100_000
#: Subjects that no client may reach by the gateway.
_TRAPS: Final = ("$KV.>", "$JS.API.STREAM.DELETE.>", "_lift.>", "liftenvelope.groups.>", "trap.>")
_NICENESS: Final = 10
#: Publishes of the bystander that show that it is served.
_SERVED: Final = 3
#: Seconds between its publishes: its median latency tells how it is served.
_PAUSE: Final = 0.005


@dataclass
class Figures:
    """Cost of an attack.

    Attributes:
        name: Name of the attack.
        rest, attacked: Median latency of the bystander without and under the attack, in milliseconds.
        rss_mib: Growth of the victim's resident memory, in MiB.
        descriptors: Descriptors open after the attack, less those before it.
        log_lines: Lines that the victim has logged.
        outcome: What the attacker has seen.
        faults: What is wrong; empty if nothing is.
    """

    name: str
    rest: float
    attacked: float
    rss_mib: float
    descriptors: int
    log_lines: int
    outcome: Outcome
    faults: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Latency under attack compared with that at rest."""
        return self.attacked / self.rest if self.rest else 0.0


class Victim:
    """A gateway on a NATS server of its own, with a bystander that publishes; a context manager.

    Args:
        certificates: For one that has TLS and a policy; None for a plain one.
        pause: Seconds between an ack of the bystander and its next message.
    """

    def __init__(self, certificates: Certificates | None = None, *, pause: float = _PAUSE) -> None:
        self._certificates = certificates
        self._pause = pause
        self._stack = ExitStack()
        self.cluster: GatewayCluster
        self.bystander: Bystander

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            server = stack.enter_context(run_nats_server(jetstream=True))
            tls = None if self._certificates is None else self._certificates.client("bystander")
            config: dict[str, Any] = {} if self._certificates is None else self._certificates.gateway
            self.cluster = stack.enter_context(run_gateway(nats_server=server, config=config, tls=tls))
            if self._certificates is None:
                asyncio.run(self._prepare())
            files = None if self._certificates is None else self._certificates.bystander
            self.bystander = Bystander(self.address, files, self._pause)
            stack.callback(self.bystander.close)
            self.bystander.wait_for(_SERVED)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """Address of the gateway."""
        return self.cluster.addresses[0]

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            RuntimeError: It has ended.
        """
        pid = self.cluster.nodes[0].pid
        if pid is None:
            raise RuntimeError(f"the gateway has ended: {self.log()[-3_000:]}")
        return pid

    def log(self) -> str:
        """Return what the gateway has logged."""
        return self.cluster.nodes[0].log()

    def attack(self, row: Attack, extent: Extent) -> tuple[Outcome, list[str]]:
        """Carry an attack out; return what the attacker saw, and what arrived where nothing may."""
        tls = self._certificates.client(row.tls) if self._certificates is not None else None
        nats_address = self.cluster.nats_url.removeprefix("nats://")
        address = nats_address if row.wire == "nats" else self.address
        trapped: list[str] = []

        async def note(msg: Msg) -> None:
            if MARK.encode() in msg.data:
                trapped.append(msg.subject)

        async def main() -> Outcome:
            async with AsyncExitStack() as stack:
                nc = await nats.connect(self.cluster.nats_url)
                stack.push_async_callback(nc.close)
                for subject in _TRAPS:
                    await nc.subscribe(subject, cb=note)
                await handled(nc)
                outcome = await attack(row, address, tls, extent)
                await handled(nc)
                return outcome

        with ThreadPoolExecutor(1, initializer=_give_way) as thread:
            return thread.submit(asyncio.run, main()).result(), trapped

    async def _prepare(self) -> None:
        async with liftenvelope.connect(self.address, timeout=60) as client:
            await client.create_stream("data", "data")
            await client.create_stream("shared", "first")
            await client.create_stream("shared", "copy")
            await client.publish_many("data", (bytes(_SIZE) for _ in range(_MESSAGES)), timeout=60)


def _give_way() -> None:
    """Let the victim have the processors, as if the attacker, this thread, had a machine of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def run_attack(victim: Victim, row: Attack, extent: Extent) -> Figures:
    """Carry an attack out between two spans of rest; return the figures and what is wrong."""
    pid, rest = victim.pid, extent.seconds / 2
    logged, open_before = len(victim.log()), descriptors(pid)
    began = time.monotonic()
    victim.bystander.wait_until(began + rest)
    victim.bystander.wait_for(1)
    start = time.monotonic()
    with Watch(pid) as watch:
        outcome, trapped = victim.attack(row, extent)
        stop = time.monotonic()
        victim.bystander.wait_for(_SERVED)
    resumed = time.monotonic()
    victim.bystander.wait_until(resumed + rest)
    until(lambda: descriptors(pid) <= open_before + row.bounds.descriptors)
    log, ended = victim.log()[logged:], time.monotonic()
    spans = [(began, start), (resumed, ended)]
    figures = Figures(
        name=row.name,
        rest=min(victim.bystander.p50(*span) for span in spans),
        attacked=victim.bystander.p50(start, stop),
        rss_mib=watch.growth,
        descriptors=descriptors(victim.pid) - open_before,
        log_lines=len(log.splitlines()),
        outcome=outcome,
    )
    figures.faults += [f"the bystander failed: {text}" for text in victim.bystander.errors(began, ended)[:1]]
    figures.faults += [f"the victim published to {subject}" for subject in sorted(set(trapped))]
    figures.faults += _excesses(row, figures, log, ended - began) + _answers(row, outcome)
    return figures


def _excesses(row: Attack, figures: Figures, log: str, seconds: float) -> list[str]:
    """Return which bounds of an attack were exceeded."""
    most = row.bounds.log_lines * (1 + int(seconds / 60))
    seen = {
        f"memory grew by more than {row.bounds.rss_mib:.0f} MiB": figures.rss_mib > row.bounds.rss_mib,
        f"{figures.descriptors} descriptors stayed open": figures.descriptors > row.bounds.descriptors,
        f"more than {most} lines were logged, such as {log.strip()[-200:]!r}": figures.log_lines > most,
        f"the log has a traceback: {log.strip()[-400:]!r}": "Traceback" in log,
    }
    return [text for text, is_so in seen.items() if is_so]


def _answers(row: Attack, outcome: Outcome) -> list[str]:
    """Return what the victim did and must not do, or did not and must."""
    must, faults = row.must, []
    if must.close and outcome.closed < outcome.opened:
        faults.append(f"{outcome.opened - outcome.closed} of {outcome.opened} connections were not closed")
    if must.close is False and outcome.closed:
        faults.append(f"{outcome.closed} of {outcome.opened} connections were closed")
    if must.codes and not set(outcome.goaways) <= must.codes:
        faults.append(f"GOAWAY had the codes {dict(outcome.goaways)}, expected {sorted(must.codes)}")
    if must.statuses and not (outcome.statuses and set(outcome.statuses) <= must.statuses):
        faults.append(f"the statuses were {dict(outcome.statuses)}, expected {sorted(must.statuses)}")
    if outcome.longest > 1_024 * 3:
        faults.append(f"a status text had {outcome.longest} bytes")
    return faults
