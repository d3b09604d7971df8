"""Option ``--group-prefix``, of the commands that show groups over NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.cli._connecting.servers import CommandServers

__all__ = ["find_group_prefix", "group_prefix_option"]

group_prefix_option: Final = click.option(
    "--group-prefix",
    metavar="PREFIX",
    help="Prefix of the coordinators of groups over NATS.  [default: liftenvelope.groups]",
)


def find_group_prefix(servers: CommandServers, given: str | None) -> str:
    """Return the prefix of the coordinators.

    Raises:
        UsageError: It is malformed, or the servers have no groups over NATS.
    """
    from liftenvelope.group.calls import DEFAULT_PREFIX
    from liftenvelope.group.names import check_prefix

    if given is None:
        return DEFAULT_PREFIX
    servers.need("nats", "--group-prefix")
    try:
        return check_prefix(given)
    except UsageError as exc:
        raise UsageError(f"--group-{exc}") from exc
