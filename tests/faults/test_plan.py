"""Plans are repeatable, and together they have every path, server and fault."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.paths import WORK
from tests.faults.plan import KINDS, PATHS, SCENES, make_plan

PLANS = [make_plan(seed) for seed in range(300)]


def test_a_seed_stands_for_one_plan() -> None:
    assert [make_plan(seed) for seed in range(300)] == PLANS


def test_a_repeated_run_is_the_same_when_path_and_scene_are_named() -> None:
    """As the printed command does it."""
    assert [make_plan(plan.seed, plan.path, scene=plan.scene) for plan in PLANS] == PLANS


def test_every_path_has_work() -> None:
    assert WORK.keys() | {"bulk-read"} == PATHS.keys()


def test_every_path_runs_on_each_of_its_servers() -> None:
    wanted = {(path, scene) for path, rules in PATHS.items() for scene in rules.scenes}
    assert {(plan.path, plan.scene) for plan in PLANS} == wanted


@pytest.mark.parametrize("path", PATHS)
def test_consecutive_seeds_of_one_path_take_all_of_its_servers(path: str) -> None:
    scenes = PATHS[path].scenes
    assert [make_plan(seed, path).scene for seed in range(len(scenes))] == list(scenes)


def test_every_kind_of_fault_comes() -> None:
    kinds = Counter(fault.kind for plan in PLANS for fault in plan.faults)
    assert kinds.keys() == set(KINDS)


@pytest.mark.parametrize("path", PATHS)
def test_every_process_and_wire_of_a_path_fails(path: str) -> None:
    rules = PATHS[path]
    for scene in rules.scenes if path != "bulk-read" else ():
        servers = SCENES[scene]
        wanted = {*servers.processes, *(wire for wire in servers.wires if wire in rules.wires), *rules.own}
        plans = [make_plan(seed, path, scene=scene) for seed in range(200)]
        assert {fault.target for plan in plans for fault in plan.faults} == wanted


def test_no_wire_has_the_name_of_a_process() -> None:
    for scene in SCENES.values():
        assert not set(scene.wires) & set(scene.processes)


def test_processes_are_killed_and_wires_are_cut() -> None:
    for plan in PLANS:
        wires = SCENES[plan.scene].wires
        for fault in plan.faults:
            of_a_wire = fault.kind in ("cut", "stall", "refuse", "truncate", "delay")
            assert of_a_wire == (fault.target in wires)


def test_faults_come_in_order_before_the_goal() -> None:
    for plan in PLANS:
        places = [fault.after for fault in plan.faults]
        assert places == sorted(places)
        assert all(0 < place < 1 for place in places)


def test_a_small_scale_makes_a_short_run() -> None:
    small = [make_plan(plan.seed, scale=0.02) for plan in PLANS]
    for plan, short in zip(PLANS, small, strict=True):
        assert short.goal <= max(100, plan.goal * 0.02)
        assert [(fault.kind, fault.target) for fault in short.faults] == [
            (fault.kind, fault.target) for fault in plan.faults
        ]
