"""``liftenvelope account``: shows the limits and the use of an account of JetStream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from liftenvelope.cli._checks.answers import permitted
from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._output.terminal import echo_json, plain, print_facts, print_table
from liftenvelope.errors import NoJetStreamError, PermissionDeniedError

if TYPE_CHECKING:
    from liftenvelope.jetstream import AccountInfo, AccountTier, JetStream

__all__ = ["account"]


@click.group()
def account() -> None:
    """Show limits and use of an account (JetStream)."""


@account.command("info")
@json_option
@on_servers
async def info_of_account(servers: CommandServers, as_json: bool) -> None:
    """Show limits and use of the account of this user in JetStream."""
    servers.need("nats", "account info")
    async with servers.jetstream() as js:
        info = await js.account_info()
        user = await _user(js)
    if as_json:
        echo_json({**plain(info), "user": user})
    else:
        _print(info, user)


async def _user(js: JetStream) -> dict[str, str | None]:
    """Return names of the user, the account and the server; None for what the server does not tell."""
    subject = "$SYS.REQ.USER.INFO"
    try:
        answer = json.loads((await permitted(js.api.nc, subject, js.api.ask(subject))).data)
    except (PermissionDeniedError, NoJetStreamError, ValueError):
        answer = None
    told = answer.get("data") if isinstance(answer, dict) else None
    names = told if isinstance(told, dict) else {}
    version = js.api.nc.connected_server_version
    return {
        "user": names.get("user") or None,
        "account": names.get("account_name") or names.get("account") or None,
        "server": f"nats-server {version.major}.{version.minor}.{version.patch}",
    }


def _print(info: AccountInfo, user: dict[str, str | None]) -> None:
    facts: dict[str, object] = {
        **user,
        "domain": info.domain or None,
        "API requests": info.api.total,
        "API errors": info.api.errors,
        "API requests in flight": info.api.inflight,
        "API level": info.api.level,
    }
    print_facts("JetStream account", facts)
    for name, tier in info.tiers.items() or [("", info)]:
        click.echo()
        print_table([f"tier {name}" if name else "", "in use", "reserved", "limit"], _rows(tier))


def _rows(tier: AccountTier) -> list[tuple[object, ...]]:
    limits = tier.limits
    rows: list[tuple[object, ...]] = [
        ("bytes on disk", tier.storage, tier.reserved_storage, _limit(limits.max_storage)),
        ("bytes in memory", tier.memory, tier.reserved_memory, _limit(limits.max_memory)),
        ("streams", tier.streams, None, _limit(limits.max_streams)),
        ("consumers", tier.consumers, None, _limit(limits.max_consumers)),
    ]
    of_one = {
        "bytes of one stream on disk": limits.storage_max_stream_bytes,
        "bytes of one stream in memory": limits.memory_max_stream_bytes,
        "messages of one consumer without an ack": limits.max_ack_pending,
    }
    rows += [(name, None, None, _limit(most)) for name, most in of_one.items() if most > 0]
    if limits.max_bytes_required:
        rows.append(("max_bytes of each stream", None, None, "required"))
    return rows


def _limit(most: int) -> str:
    return "no limit" if most < 0 else f"{most:,}"
