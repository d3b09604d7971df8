"""One run: a plan carried out on its servers, and the verdict."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as Folder
from typing import Any, Final

from tests.faults.checker import Checker
from tests.faults.injector import Injector
from tests.faults.ledger import Ledger
from tests.faults.messages import Messages
from tests.faults.plan import Plan
from tests.faults.scenes import PATIENCE, Process, Scene, start_scene

__all__ = ["Path", "Result", "Run", "StuckError", "run_plan"]

#: Seconds by which a call may overrun its own time limit: a busy machine is slow, and no finding.
SLACK: Final = 30.0
#: Messages that must be acked after the last fault, as a part of the goal.
_TAIL: Final = 0.05
_MOST_TEXTS: Final = 10


class StuckError(Exception):
    """Servers that are whole again ack nothing, or a publisher can't reach them."""


@dataclass
class Result:
    """Result of a run.

    Attributes:
        plan: The plan.
        acked: How many messages were acked.
        stored: How many rows the servers have.
        faults: Faults that were carried out, by kind.
        errors: Errors that the package raised, by class.
        violations: What is wrong; empty if nothing is.
        longest: Seconds of the longest call, and its name.
        seconds: Seconds of the whole run.
    """

    plan: Plan
    acked: int = 0
    stored: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    longest: tuple[float, str] = (0.0, "")
    seconds: float = 0.0


class Run:
    """Environment of a path.

    Args:
        plan: The plan.
        scene: Its servers, running.
        partitions: Number of partitions of the stream.
        folder: An empty folder.
        keyed: Whether messages have keys.
        text: Whether values are printable.

    Attributes:
        stream: Name of the stream.
        under_way: How many messages of an unfinished call are taken.
        messages: What to publish.
        ledger: Where outcomes go.
        processes: Processes of the path that faults are done to.
        longest: Seconds of the longest call, and its name.
        extra: Violations that the path finds by itself.
    """

    def __init__(
        self, plan: Plan, scene: Scene, partitions: int, folder: Folder, *, keyed: bool, text: bool
    ) -> None:
        self.plan = plan
        self.scene = scene
        self.folder = folder
        self.stream = f"faults-{plan.seed}"
        self.messages = Messages(plan.seed, partitions, keyed=keyed, text=text)
        self.ledger = Ledger()
        self.under_way = 0
        self.processes: dict[str, Process] = {}
        self.longest = (0.0, "")
        self.extra: list[str] = []
        self.injector = Injector(scene, plan.faults, self._progress, self.processes)
        self._healed_at: int | None = None
        self._seen, self._since = 0, time.monotonic()

    def is_over(self) -> bool:
        """Return True if enough is acked, also after the last fault.

        Raises:
            StuckError: Nothing has been acked for long after the last fault.
        """
        acked, now = self.ledger.acked, time.monotonic()
        if not self.injector.is_healed:
            self._since = now
            return False
        if self._healed_at is None:
            self._healed_at, self._since = acked, now
        if acked != self._seen:
            self._seen, self._since = acked, now
        if now - self._since > PATIENCE:
            raise StuckError(f"nothing was acked for {PATIENCE:.0f} s after the last fault")
        return acked >= max(self.plan.goal, self._healed_at + self.plan.goal * _TAIL)

    def note(self, call: str, seconds: float, bound: float) -> None:
        """Note how long a call has taken that must end within ``bound`` seconds."""
        self.longest = max(self.longest, (seconds, call))
        if seconds > bound + SLACK:
            self.violate(f"{call} took {seconds:.1f} s, and may take {bound:.1f} s")

    @contextmanager
    def timed(self, call: str, bound: float) -> Iterator[None]:
        """Note how long a block has taken."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.note(call, time.monotonic() - began, bound)

    def violate(self, text: str) -> None:
        """Note something that must not be."""
        if len(self.extra) < _MOST_TEXTS:
            self.extra.append(text)

    def in_event_loop(self, work: Callable[[Run], Any]) -> None:
        """Run a coroutine; whatever the event loop would only log is a violation."""

        def seen(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            self.violate(f"in the event loop: {context['message']}: {error!r}")

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(seen)
            await work(self)

        asyncio.run(main())

    def _progress(self) -> float:
        return (self.ledger.acked + self.under_way) / self.plan.goal


@dataclass(frozen=True)
class Path:
    """A way to publish messages into a stream.

    Attributes:
        work: Publishes until the run is over.
        partitions: Number of partitions.
        text: Whether values must be printable.
        once: Whether no message may be stored twice with a plan.
        check: Looks at more than the stream afterwards. It is given how many rows that has.
    """

    work: Callable[[Run], None]
    partitions: int = 1
    text: bool = False
    once: Callable[[Plan], bool] = lambda _: True
    check: Callable[[Run, int], None] = lambda _, __: None


def run_plan(plan: Plan, path: Path, started: Callable[[Run], None] = lambda _: None) -> Result:
    """Carry out a plan, and compare what was reported with what is stored.

    Args:
        plan: The plan.
        path: Its path.
        started: Called with the run before it begins, for who wants to show its progress.
    """
    began = time.monotonic()
    with start_scene(plan.scene) as scene, tempfile.TemporaryDirectory(prefix="liftenvelope-") as folder:
        has_api = scene.cluster is not None
        partitions = path.partitions if has_api else 1
        run = Run(plan, scene, partitions, Folder(folder), keyed=has_api, text=path.text)
        scene.create_stream(run.stream, partitions)
        started(run)
        run.injector.start()
        try:
            path.work(run)
        except StuckError as exc:
            run.violate(str(exc))
        finally:
            run.injector.end()
        checker = Checker(run.messages, run.ledger, once=path.once(plan), repeats=scene.is_liftbridge)
        scene.check_rows(run.stream, partitions, checker)
        path.check(run, checker.rows)
        violations = run.extra + checker.finish()
        if violations:
            violations.append(f"the servers said: {scene.log()[-3_000:]}")
    return Result(
        plan,
        run.ledger.acked,
        checker.rows,
        run.injector.done,
        run.ledger.errors,
        violations,
        run.longest,
        time.monotonic() - began,
    )
