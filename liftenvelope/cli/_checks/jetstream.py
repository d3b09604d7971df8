"""Checks of ``liftenvelope doctor`` on an account of JetStream, its streams and its consumers. Sans-io."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from liftenvelope.cli._checks.findings import NEAR, Finding, FindingStatus, Rule

if TYPE_CHECKING:
    from liftenvelope.jetstream import AccountInfo, AccountTier, ConsumerInfo, StreamInfo

__all__ = ["account_findings", "consumer_rules", "stream_rules"]

#: Seconds that publishes are retried by default: the default timeout of a publish, retries included.
_RETRIES: Final = 5.0
#: Seconds that a reader has at least for its work on a message.
_ACK_WAIT: Final = 1.0


def account_findings(info: AccountInfo) -> Iterator[Finding]:
    """Compare the usage of an account, or of each of its tiers, with its limits."""
    if info.tiers:
        for name, tier in info.tiers.items():
            yield from _tier_findings(tier, f" in tier {name}")
    else:
        yield from _tier_findings(info, "")


def _tier_findings(tier: AccountTier, where: str) -> Iterator[Finding]:
    limits = tier.limits
    for noun, used, most in (
        ("bytes on disk", max(tier.storage, tier.reserved_storage), limits.max_storage),
        ("bytes in memory", max(tier.memory, tier.reserved_memory), limits.max_memory),
        ("streams", tier.streams, limits.max_streams),
        ("consumers", tier.consumers, limits.max_consumers),
    ):
        yield _limit_finding(f"account limit of {noun}{where}", noun, used, most)


def _limit_finding(check: str, noun: str, used: int, most: int) -> Finding:
    if most < 0 or (not most and not used):
        # Accounts without limits have -1, and 0 disables a kind of storage that then is not used.
        return Finding(
            status=FindingStatus.OK, check=check, got=f"{used:,}, no limit" if most else "disabled"
        )
    is_near, is_full = used >= NEAR * most, used >= most and noun.startswith("bytes")
    status = FindingStatus.PROBLEM if is_full else FindingStatus.WARNING if is_near else FindingStatus.OK
    return Finding(
        status=status,
        check=check,
        got=f"{used:,} of {most:,} in use or reserved",
        expected=f"less than {NEAR:.0%}",
        remedy=f"raise the limit of the account, or delete {noun}" if is_near else "",
    )


def stream_rules() -> list[Rule[StreamInfo]]:
    """Return the rules for streams."""
    return [*_storage_rules(), *_limit_rules(), *_state_rules()]


def _storage_rules() -> Iterator[Rule[StreamInfo]]:
    yield Rule(
        check="streams without publish acks",
        test=lambda info: "no_ack" if info.config.no_ack else None,
        expected="no_ack is false, so that a publisher learns that a message is lost",
        remedy="set no_ack to false, as by: nats stream edit STREAM --ack",
        status=FindingStatus.PROBLEM,
    )
    yield Rule(
        check="streams in memory",
        test=lambda info: "" if info.config.storage == "memory" else None,
        expected="file storage, which survives a restart of the servers",
        remedy="create the stream anew with --storage file: the storage of a stream can't be changed",
    )
    yield Rule(
        check="streams with one replica in a cluster",
        test=_lonely,
        expected="3 replicas in a cluster",
        remedy="stream edit STREAM --replicas 3",
    )
    yield Rule(
        check="streams that ack before they write",
        test=lambda info: "persist_mode async" if info.config.persist_mode == "async" else None,
        expected="persist_mode default, which acks what is written",
        remedy="create the stream anew without persist_mode async",
    )


def _lonely(info: StreamInfo) -> str | None:
    is_cluster = info.cluster is not None and bool(info.cluster.name)
    return "" if is_cluster and info.config.num_replicas == 1 else None


def _limit_rules() -> Iterator[Rule[StreamInfo]]:
    yield Rule(
        check="streams near a limit",
        test=_near_limit,
        expected=f"less than {NEAR:.0%} of max_msgs and max_bytes",
        remedy="raise the limit by stream edit, if messages that nobody has read yet may be discarded",
    )
    yield Rule(
        check="streams with a short duplicate window",
        test=_short_window,
        expected=f"{_RETRIES:g} s or more, the time for which publishes are retried by default",
        remedy="stream edit STREAM --dupe-window 2m",
    )
    yield Rule(
        check="streams that discard what nobody waits for",
        test=_without_interest,
        expected="a consumer for each stream with retention interest",
        remedy="create the consumer before messages are published",
    )


def _near_limit(info: StreamInfo) -> str | None:
    config, state = info.config, info.state
    for name, used, most in (
        ("messages", state.messages, config.max_msgs),
        ("bytes", state.bytes, config.max_bytes),
    ):
        if most > 0 and used >= NEAR * most:
            then = "new ones are refused" if config.discard == "new" else "old ones are discarded"
            return f"{used:,} of {most:,} {name}, {then}"
    return None


def _short_window(info: StreamInfo) -> str | None:
    window = info.config.duplicate_window
    if info.config.mirror is not None or window is None or window >= _RETRIES:
        return None
    if info.config.max_age and info.config.max_age <= window:  # a server refuses a longer window
        return None
    return f"{window:g} s"


def _without_interest(info: StreamInfo) -> str | None:
    return "" if info.config.retention == "interest" and not info.state.consumer_count else None


def _state_rules() -> Iterator[Rule[StreamInfo]]:
    yield Rule(
        check="streams that have lost messages",
        test=lambda info: None if info.state.lost is None else f"{len(info.state.lost.msgs):,} messages",
        expected="no messages lost by the store",
        remedy="check the disk, and restore the stream from a backup",
        status=FindingStatus.PROBLEM,
    )
    yield Rule(
        check="streams without a leader",
        test=lambda info: "" if info.cluster is not None and not info.cluster.leader else None,
        expected="a leader for each stream",
        remedy="start the servers that hold its replicas",
        status=FindingStatus.PROBLEM,
    )
    yield Rule(
        check="replicas of streams that are behind",
        test=_behind,
        expected="all replicas online and current",
        remedy="start the named servers, and check their network and disks",
    )


def _behind(info: StreamInfo) -> str | None:
    replicas = () if info.cluster is None else info.cluster.replicas
    names = [one.name for one in replicas if one.offline or not one.current]
    return ", ".join(names) if names else None


def consumer_rules() -> list[Rule[ConsumerInfo]]:
    """Return the rules for consumers. Those of ordered readers, which are ephemeral, need no acks."""
    return [*_ack_rules(), *_delivery_rules()]


def _ack_rules() -> Iterator[Rule[ConsumerInfo]]:
    yield Rule(
        check="durable consumers without acks",
        test=lambda info: "" if _is_durable(info) and info.config.ack_policy == "none" else None,
        expected="ack_policy explicit, so that a message is redelivered if its reader fails",
        remedy="create the consumer anew with --ack explicit",
    )
    yield Rule(
        check="consumers with a short ack_wait",
        test=_short_wait,
        expected=f"{_ACK_WAIT:g} s or more, and longer than the work on a message",
        remedy="set a longer time by consumer edit --ack-wait, or --backoff",
    )


def _is_durable(info: ConsumerInfo) -> bool:
    return bool(info.config.durable_name) and not info.config.direct and not info.config.sourcing


def _short_wait(info: ConsumerInfo) -> str | None:
    config = info.config
    wait = min(config.backoff, default=config.ack_wait)
    if config.ack_policy == "none" or not wait or wait >= _ACK_WAIT:
        return None
    return f"{wait:g} s"


def _delivery_rules() -> Iterator[Rule[ConsumerInfo]]:
    yield Rule(
        check="consumers that deliver once",
        test=lambda info: "max_deliver 1" if _delivers_once(info) else None,
        expected="max_deliver of 2 or more, or -1, so that a message is redelivered if its reader fails",
        remedy="raise it by consumer edit --max-deliver",
    )
    yield Rule(
        check="consumers that wait for acks",
        test=_stalled,
        expected="fewer messages without an ack than max_ack_pending",
        remedy="check that readers ack, or raise the limit by consumer edit --max-pending",
    )


def _delivers_once(info: ConsumerInfo) -> bool:
    return info.config.max_deliver == 1 and info.config.ack_policy != "none"


def _stalled(info: ConsumerInfo) -> str | None:
    most = info.config.max_ack_pending or 0
    if most <= 0 or info.num_ack_pending < most:
        return None
    return f"{info.num_ack_pending:,} without an ack"
