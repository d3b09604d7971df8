"""The plan of a seed: servers, a path, options, and a schedule of faults. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["KINDS", "OPT_IN", "PATHS", "SCENES", "Fault", "PathRules", "Plan", "SceneRules", "make_plan"]


@dataclass(frozen=True, slots=True)
class SceneRules:
    """Parts of a scene that can fail.

    Attributes:
        processes: Server processes.
        wires: Connections that a proxy can spoil: ``nats-wire`` between NATS clients and their server,
            ``api-wire`` between clients and the Liftbridge API, ``store-wire`` between them and NATS.
        limited: The process whose storage can be exhausted, None where there is no JetStream on one server.
    """

    processes: tuple[str, ...]
    wires: tuple[str, ...]
    limited: str | None = None


@dataclass(frozen=True, slots=True)
class PathRules:
    """Needs of a path of messages.

    Attributes:
        scenes: The servers that it runs on.
        wires: The connections that its clients use.
        goal: How many messages a run has acked at least.
        own: Processes of its own, beside the servers.
    """

    scenes: tuple[str, ...]
    wires: tuple[str, ...]
    goal: int
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: One of KINDS.
        target: A process or a wire.
        after: It begins when this fraction of the goal has been acked.
        seconds: How long it lasts.
    """

    kind: str
    target: str
    after: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.target} for {self.seconds:.1f} s at {self.after:.0%}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Attributes:
        seed: What it is made of.
        path: How messages are published.
        scene: On which servers.
        goal: How many messages are to be acked at least.
        timeout: Seconds that the publisher waits for an ack.
        again: Whether messages without an ack are published again, where the path has both ways.
        faults: What happens, in that order.
    """

    seed: int
    path: str
    scene: str
    goal: int
    timeout: float
    again: bool
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        size = f"{self.goal:,} messages, {len(self.faults)} faults"
        return f"seed {self.seed}: {self.path} on {self.scene}, {size}"


#: Kinds of faults of processes and of wires, as often as they are to come.
_OF_PROCESSES: Final = ("kill", "kill", "kill", "stop", "stop", "descriptors")
_OF_WIRES: Final = ("cut", "cut", "stall", "refuse", "truncate", "delay")
_OF_OWN: Final = ("kill", "kill", "stop")
KINDS: Final = ("kill", "stop", "descriptors", "full", "disk", "cut", "stall", "refuse", "truncate", "delay")

_WIRES: Final = ("nats-wire", "api-wire", "store-wire")
SCENES: Final[Mapping[str, SceneRules]] = {
    "nats1": SceneRules(("nats",), ("nats-wire",), "nats"),
    "nats3": SceneRules(("n1", "n2", "n3"), ("nats-wire",)),
    "gateway1": SceneRules(("nats", "gateway1"), _WIRES, "nats"),
    "gateway2": SceneRules(("nats", "gateway1", "gateway2"), _WIRES, "nats"),
    "liftbridge1": SceneRules(("nats", "liftbridge1"), _WIRES),
    "liftbridge3": SceneRules(("nats", "liftbridge1", "liftbridge2", "liftbridge3"), _WIRES),
}
_API: Final = ("gateway1", "gateway2", "liftbridge1", "liftbridge3")
_JETSTREAM: Final = ("nats1", "nats3")

PATHS: Final[Mapping[str, PathRules]] = {
    "ack-inbox": PathRules(_API, ("nats-wire", "store-wire"), 30_000),
    "envelope-publisher": PathRules(_API, ("nats-wire", "store-wire"), 60_000),
    "client-publish": PathRules(_API, ("api-wire", "store-wire"), 40_000),
    "jetstream-publish": PathRules(_JETSTREAM, ("nats-wire",), 60_000),
    "bulk-pipelined": PathRules(_JETSTREAM, ("nats-wire",), 150_000),
    "bulk-ids": PathRules(_JETSTREAM, ("nats-wire",), 100_000, ("writer",)),
    "bulk-atomic": PathRules(_JETSTREAM, ("nats-wire",), 100_000),
    "bulk-fast": PathRules(_JETSTREAM, ("nats-wire",), 200_000),
    "bulk-liftbridge": PathRules(_API, ("api-wire", "store-wire"), 60_000),
    "group": PathRules(_JETSTREAM, ("nats-wire",), 800, ("coordinator1", "coordinator2", "member")),
    # Its faults are its own: they come after so many bytes of the answer.
    "bulk-read": PathRules(("nats1", "gateway1", "liftbridge1"), (), 4_000),
    "archive": PathRules((*_JETSTREAM, "gateway1", "liftbridge1"), (), 50_000, ("archiver",)),
    # Two daemons on one archive.
    "archive-daemon": PathRules(("nats1",), (), 50_000, ("daemon1", "daemon2")),
    "archive-s3": PathRules(("nats1",), (), 50_000, ("daemon1", "daemon2")),
    "table-iceberg": PathRules((*_JETSTREAM, "gateway1", "liftbridge1"), (), 5_000, ("table1", "table2")),
    "table-delta": PathRules((*_JETSTREAM, "gateway1", "liftbridge1"), (), 5_000, ("table1", "table2")),
}

#: Paths that need more than the tests do: they come only where they are asked for.
OPT_IN: Final[Mapping[str, PathRules]] = {
    "spark-sink": PathRules(("nats1", "liftbridge1"), ("nats-wire", "store-wire"), 20_000),
}


def make_plan(seed: int, path: str | None = None, *, scale: float = 1.0, scene: str | None = None) -> Plan:
    """Return what a seed stands for.

    Args:
        seed: The seed. Consecutive seeds take the paths in turn, and those of one path its servers.
        path: The path, None for that of the seed.
        scale: Multiplies the number of messages; below 1, also the seconds that faults last.
        scene: The servers, None for those of the seed.

    Returns:
        The plan; the same for the same arguments.
    """
    names = list(PATHS)
    turn = seed // len(names) if path is None else seed
    path = names[seed % len(names)] if path is None else path
    rules = {**PATHS, **OPT_IN}[path]
    scene = rules.scenes[turn % len(rules.scenes)] if scene is None else scene
    chance = random.Random(f"{seed} {path} {scene}")
    plan = Plan(
        seed=seed,
        path=path,
        scene=scene,
        goal=max(100, int(rules.goal * scale * chance.choice([0.5, 1, 1, 1.5]))),
        timeout=chance.choice([2.0, 5.0, 10.0]),
        again=chance.random() < 0.3,
        faults=(),
    )
    if path == "bulk-read":
        return plan
    return replace(plan, faults=tuple(_faults(chance, rules, SCENES[scene], scale)))


def _faults(chance: random.Random, path: PathRules, scene: SceneRules, scale: float) -> Sequence[Fault]:
    """The faults of a run: two to five, of which the first may come soon."""
    wires = [wire for wire in scene.wires if wire in path.wires]
    faults = []
    for after in sorted(0.02 + 0.9 * chance.random() for _ in range(chance.randrange(2, 6))):
        targets = [*scene.processes * 2, *wires, *path.own * 3]
        target = chance.choice(targets)
        if target in wires:
            kind = chance.choice(_OF_WIRES)
        elif target in path.own:
            kind = chance.choice(_OF_OWN)
        else:
            kind = chance.choice([*_OF_PROCESSES, *["full", "disk"] * (target == scene.limited)])
        seconds = chance.choice([0.0, 0.2, 1.0, 1.0, 3.0, 6.0]) * (0.5 + chance.random()) * min(scale, 1.0)
        faults.append(Fault(kind, target, round(after, 2), round(seconds, 1)))
    return faults
