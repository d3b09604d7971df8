"""The targets of the campaign: every extension has at least one."""

from __future__ import annotations

from tests.fuzz.targets import columns, gateway, handout, jetstream, peers, planted, rows, values, wire

__all__ = ["PLANTED", "TARGETS"]

TARGETS = {
    target.name: target
    for module in (values, columns, rows, gateway, jetstream, handout, wire, peers)
    for target in module.TARGETS
}
#: Faults on purpose, which the campaign has to find: not a part of it.
PLANTED = {target.name: target for target in planted.TARGETS}
