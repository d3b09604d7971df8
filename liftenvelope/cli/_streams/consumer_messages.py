"""``liftenvelope consumer next``: takes messages of a consumer, shows them, and responds to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope._checks import as_seconds
from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.places import DurationType, NumberType
from liftenvelope.cli._output.received import from_jetstream, print_json, print_message, print_raw
from liftenvelope.cli._output.terminal import counted, shown
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.jetstream import Consumer, ConsumerInfo, Message

__all__ = ["next_messages"]


class _Response(StrEnum):
    """Response to the messages that were shown."""

    ACK = "ack"
    NAK = "nak"
    TERM = "term"
    NONE = "none"


#: Response -> payload that the server reads, and the participle for messages that have it.
_PAYLOADS: Final = {_Response.ACK: b"+ACK", _Response.NAK: b"-NAK", _Response.TERM: b"+TERM"}
_DONE: Final = {_Response.ACK: "acked", _Response.NAK: "returned", _Response.TERM: "terminated"}


@click.command("next")
@click.argument("stream", metavar="STREAM")
@click.argument("name", metavar="CONSUMER")
@click.option("--count", "-n", type=NumberType(min=1), default=1, show_default=True, help="Messages.")
@click.option(
    "--wait",
    type=DurationType(),
    default="5s",
    show_default=True,
    help="Time to wait for all of them.",
)
@click.option(
    "--ack/--no-ack", default=None, help="Confirm each message, or let it be redelivered.  [default: --ack]"
)
@click.option("--nak", is_flag=True, help="Return the messages: they are redelivered at once.")
@click.option("--term", is_flag=True, help="Give the messages up: they are never delivered again.")
@click.option("--group", help="Priority group.  [default: the one of the consumer]")
@click.option("--raw", is_flag=True, help="Print payloads alone, as they are.")
@json_option
@on_servers
async def next_messages(
    servers: CommandServers,
    stream: str,
    name: str,
    ack: bool | None,
    nak: bool,
    term: bool,
    raw: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Take the next messages of CONSUMER and show them.

    A message is acknowledged after it was shown. Envelopes are opened.
    """
    from liftenvelope.nats import accelerate

    servers.need("nats", "consumer next")
    response = _response(ack, nak, term)
    as_seconds("--wait", options["wait"])
    if raw and as_json:
        raise UsageError("--raw and --json exclude each other; leave one of them out")
    async with servers.jetstream() as js:
        accelerate(js.api.nc)  # nats-py keeps one value of a header that is repeated
        consumer = await js.consumer(stream, name)
        run = _Taking(consumer, _allowed(consumer.cached_info, response), raw=raw, as_json=as_json)
        await run.take(**options)


def _response(ack: bool | None, nak: bool, term: bool) -> _Response | None:
    """Return the response that options stand for; None without an option.

    Raises:
        UsageError: There is more than one.
    """
    flags = {
        "--ack": (ack is True, _Response.ACK),
        "--no-ack": (ack is False, _Response.NONE),
        "--nak": (nak, _Response.NAK),
        "--term": (term, _Response.TERM),
    }
    given = {flag: response for flag, (is_given, response) in flags.items() if is_given}
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other; leave one of them out")
    return next(iter(given.values()), None)


def _allowed(info: ConsumerInfo, wanted: _Response | None) -> _Response:
    """Return the response to the messages of a consumer.

    Raises:
        UsageError: The consumer takes no acks.
    """
    if info.config.ack_policy != "none":
        return wanted or _Response.ACK
    if wanted not in (None, _Response.NONE):
        raise UsageError(f"--{wanted} must be left out, because consumer {info.name!r} has no acks")
    return _Response.NONE


@dataclass
class _Taking:
    """Takes messages of one consumer.

    Attributes:
        consumer: Consumer of the messages.
        response: Response to them.
        raw: Print payloads alone.
        as_json: Print JSON.
        shown: Number of messages that were shown.
        done: Number of messages whose response the server has confirmed.
    """

    consumer: Consumer
    response: _Response
    raw: bool
    as_json: bool
    shown: int = 0
    done: int = 0

    async def take(self, count: int, wait: float, group: str | None) -> None:
        """Show messages and respond to them.

        Raises:
            LiftEnvelopeError: Fewer messages came than asked for, or a response was not confirmed.
        """
        returned: list[Message] = []
        async with aclosing(self._messages(count, wait, group)) as messages:
            async for message in messages:
                self._show(message)
                self.shown += 1
                if self.response is _Response.NAK:
                    returned.append(message)  # later: the server would deliver it again as the next one
                elif self.response is not _Response.NONE:
                    await self._respond(message)
        for message in returned:
            await self._respond(message)
        if self.shown:
            click.echo(shown(f"Note: {self._summary()}"), err=True)
        if self.shown < count:
            got = f"{self.shown:,} of {counted(count, 'message')} came within {wait:g} s"
            raise LiftEnvelopeError(f"{got}{await self._reason()}")

    async def _messages(self, count: int, wait: float, group: str | None) -> AsyncGenerator[Message, None]:
        """Iterate over the next messages, one pull for each: its ack may be what the server waits for."""
        config = self.consumer.cached_info.config
        if group is None and config.priority_groups:
            group = config.priority_groups[0]
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        for _ in range(count):
            if (left := end - clock()) <= 0:
                return
            batch = await self.consumer.fetch(1, expires=left, group=group)
            if not batch:
                return
            yield batch[0]

    def _show(self, message: Message) -> None:
        received, deliveries = from_jetstream(message), message.metadata.num_delivered
        if self.raw:
            print_raw(received)
        elif self.as_json:
            print_json(received, deliveries=deliveries, response=self.response)
        else:
            print_message(received, f"delivery {deliveries}" if deliveries > 1 else "")

    async def _respond(self, message: Message) -> None:
        try:
            await self.consumer.api.ask(message.reply, _PAYLOADS[self.response])
        except LiftEnvelopeError:
            number, before = message.metadata.stream_sequence, f"{self.done:,} of {self.shown:,} were"
            text = f"the {self.response} of sequence {number:,} was not confirmed; {before}"
            click.echo(f"Note: {text}", err=True)
            raise
        self.done += 1

    def _summary(self) -> str:
        if self.response is not _Response.NONE:
            return f"{_DONE[self.response]} {counted(self.done, 'message')}"
        config = self.consumer.cached_info.config
        if config.ack_policy == "none":
            return f"consumer {self.consumer.name} has no acks"
        wait = max(config.backoff, default=config.ack_wait or 0)
        again = f"within {wait:g} s, unless this was their last delivery"
        return f"acked none of {counted(self.shown, 'message')}: the server redelivers them {again}"

    async def _reason(self) -> str:
        """Return why there are no more messages, if the consumer tells it."""
        info = await self.consumer.info()
        most = info.config.max_ack_pending or -1
        if info.paused:
            return f": the consumer is paused, {info.pause_remaining:.0f} s left. See consumer resume"
        if 0 < most <= info.num_ack_pending:
            waiting = f"{counted(most, 'message')} wait for acks, as many as may"
            return f": {waiting}. See consumer edit --max-pending"
        return f": the consumer has {info.num_pending:,} unprocessed, {info.num_ack_pending:,} wait for acks"
