"""Routes of a PublishAsync call: a refusal of NATS drops its own, and the others are not looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from liftenvelope._native import gate
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamRecord
from liftenvelope.gateway._publishing.routes import Routes
from liftenvelope.gateway._publishing.targets import PublishTarget


class Target(PublishTarget):
    """A target that counts how often its subject is asked for."""

    asked = 0

    @property
    def intake(self) -> str:
        Target.asked += 1
        return super().intake


def target(name: str, subject: str) -> PublishTarget:
    record = StreamRecord(name=name, subject=subject, id=name, maker="a", partitions=(PartitionRecord(),))
    return Target(record, 0, subject, name)


def test_refusals_drop_the_routes_on_their_subjects_and_look_at_no_others() -> None:
    core = cast(Any, SimpleNamespace(registry=SimpleNamespace(changes=0)))
    routes = Routes(core, gate.PublishPipe("_INBOX.a.", 1024, 100))
    targets = {f"s{number}": target(f"s{number}", f"subject {number // 2}") for number in range(1_000)}
    for one in targets.values():
        routes.add(one)
    Target.asked = 0
    routes.drop_refused({"nobody's": 1, targets["s5"].intake: 2})
    assert set(targets) - {stream for stream, _ in routes} == {"s4", "s5"}
    assert Target.asked < 10
    routes.drop_refused({targets["s5"].intake: 1})
    routes.drop("s6", 0)
    routes.drop_refused({targets["s7"].intake: 1})
    assert len(list(routes)) == 996
    routes.add(targets["s5"])
    routes.expect_domain("hub")
    routes.drop_refused({targets["s5"].intake: 1})
    assert len(list(routes)) == 996
    assert not routes._on.keys() & {one.intake for one in targets.values()} - {
        targets[stream].intake for stream, _ in routes
    }
