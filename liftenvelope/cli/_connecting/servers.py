"""Servers of a command: the options that name them, and connections to them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from liftenvelope._checks import as_seconds
from liftenvelope._secrets import without_secrets
from liftenvelope.cli._connecting.contexts import NatsContext, context_names, read_context, selected_context
from liftenvelope.cli._connecting.termination import run_until_terminated
from liftenvelope.cli._options.places import DurationType, fail_cleanly
from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    LiftEnvelopeError,
    MissingExtraError,
    PermissionDeniedError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.tls_files import client_context

if TYPE_CHECKING:
    import ssl

    from nats.aio.client import Client as NatsClient

    from liftenvelope.bulk import Access
    from liftenvelope.client import Client, ClientEvent
    from liftenvelope.jetstream import JetStream

__all__ = ["CommandServers", "find_servers", "json_option", "named_servers", "on_servers", "with_source"]

_PORTS: Final = {"nats": 4222, "tls": 4222, "liftbridge": 9292}
_EXPECTED: Final = "a URL such as nats://host:4222, tls://host:4222 or liftbridge://host:9292"
_ADVICE: Final = "; check the address and its scheme, and that the server runs"
_TIMEOUT_DEFAULT: Final = 5.0
#: Seconds between attempts to reconnect, and attempts for each server: half a minute.
_PAUSE: Final = 0.25
_ATTEMPTS: Final = 120
#: Attempts for the first connection. A server may reset a connection before its reason has been read.
_FIRST_ATTEMPTS: Final = 3
#: Errors of attempts to remember.
_NOTED: Final = 20
#: Longest message of Liftbridge to read, in bytes: as ``liftenvelope read`` takes them.
_LONGEST_MESSAGE: Final = 64 * 1024 * 1024

_NO_LINES: Final = logging.NullHandler()

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one document, or one object per line for messages."
)


@dataclass(frozen=True, kw_only=True)
class CommandServers:
    """Servers that a command works on, all of one kind.

    Attributes:
        scheme: ``nats`` or ``liftbridge``.
        urls: URLs of NATS, or addresses of Liftbridge as ``host:port``.
        context: Login and settings.
        timeout: Seconds to wait for a connection, an answer or an ack.
    """

    scheme: str
    urls: tuple[str, ...] = field(repr=False)
    context: NatsContext
    timeout: float

    @property
    def is_jetstream(self) -> bool:
        """True for JetStream, False for Liftbridge and the gateway."""
        return self.scheme == "nats"

    @property
    def has_tls(self) -> bool:
        """True if TLS is required by a URL, by the certificates of the context, or by its ``tls_first``."""
        context = self.context
        return bool(context.ca or context.cert or (context.tls_first and self.is_jetstream)) or any(
            url.startswith("tls://") for url in self.urls
        )

    @property
    def where(self) -> str:
        """Addresses without a login, for messages."""
        return without_secrets(",".join(self.urls))

    def need(self, scheme: str, what: str) -> None:
        """Raise ``UsageError`` unless the servers are of the kind that a command needs."""
        if self.scheme != scheme:
            name = "JetStream" if scheme == "nats" else "Liftbridge"
            raise UsageError(f"{what} needs {name}: --url must begin with {scheme}://, got {self.where}")

    @asynccontextmanager
    async def nats(self) -> AsyncIterator[NatsClient]:
        """Connect to NATS, and close the connection in the end.

        Raises:
            TransportError: No server could be reached, or the connection was lost and not regained.
            PermissionDeniedError: The server refused the login.
            UsageError: A file of the context can't be read, or a URL is invalid.
        """
        from liftenvelope.nats.closing import close_connection

        nc = await self._connect()
        try:
            yield nc
        except ConnectionClosedError as exc:
            if not nc.is_closed:
                raise
            lost = f"the connection to NATS at {self.where} was lost and not regained"
            text = f"{lost} in half a minute: start the server, and run the command again"
            raise ConnectionClosedError(text, exc.published, exc.sent) from exc
        except CallTimeoutError as exc:
            # The server tells of a refused subject apart from the request, which then gets no answer.
            text, reason = str(exc), str(nc.last_error)
            if "permissions violation" not in reason.lower():
                raise
            text = text if reason in text else f"{text}: {reason}"
            raise PermissionDeniedError(0, without_secrets(text)) from exc
        finally:
            await close_connection(nc)

    @asynccontextmanager
    async def jetstream(self, *, max_outstanding: int = 4_000) -> AsyncIterator[JetStream]:
        """Connect to JetStream, with a limit of publishes in flight. Errors are those of :meth:`nats`."""
        from liftenvelope.jetstream import JetStream

        async with self.nats() as nc:
            domain, prefix = self.context.jetstream_domain, self.context.jetstream_api_prefix
            async with JetStream(
                nc,
                domain=domain or None,
                api_prefix=prefix or None,
                timeout=self.timeout,
                max_outstanding=max_outstanding,
            ) as js:
                yield js

    @asynccontextmanager
    async def liftbridge(self) -> AsyncIterator[Client]:
        """Connect to a Liftbridge cluster or a gateway.

        Raises:
            TransportError, CallTimeoutError: No server could be reached.
        """
        from liftenvelope.client import connect

        # Python prints warnings without a handler on standard error, where _report tells of the same events.
        logging.getLogger("liftenvelope.client").addHandler(_NO_LINES)
        client = connect(
            list(self.urls),
            tls=self._tls() or None,
            timeout=self.timeout,
            ack_wait=self.timeout,
            connect_timeout=self.timeout,
            max_message_bytes=_LONGEST_MESSAGE,
            on_event=_report,
        )
        try:
            try:
                await client.open()
            except (TransportError, CallTimeoutError) as exc:
                text = f"can't connect to Liftbridge at {self.where}: {exc}"
                raise TransportError(f"{text}{_advice_for(exc)}") from exc
            yield client
        finally:  # also if connecting is interrupted
            await client.close()

    def access(self) -> Access:
        """Return the login and the settings of the context, for :mod:`liftenvelope.bulk`."""
        from liftenvelope.bulk import Access

        context = self.context
        given: dict[str, Any] = {
            "user": context.user,
            "password": context.password if context.user else "",
            "token": context.token,
            "user_credentials": context.creds,
            "nkeys_seed": context.nkey,
            "inbox_prefix": context.inbox_prefix,
            "domain": context.jetstream_domain,
            "api_prefix": context.jetstream_api_prefix,
            "tls": self._tls(),
            "tls_first": context.tls_first,
        }
        return Access(**{name: value for name, value in given.items() if value})

    def _tls(self) -> ssl.SSLContext | None:
        context = self.context
        if not self.has_tls:
            return None
        try:
            return client_context(context.ca or None, context.cert or None, context.key or None)
        except OSError as exc:
            text = f"ca, cert and key of context {context.name!r} must be PEM files that can be read: {exc}"
            raise UsageError(text) from exc

    def _check_credentials(self) -> None:
        """Raise UsageError if the credentials file can't be read, or has no JWT or no seed."""
        from liftenvelope.nats.logins import read_credentials

        name = self.context.creds
        if not name:
            return
        try:
            text = Path(name).read_text("utf-8")
        except (OSError, ValueError) as exc:
            raise UsageError(f"a file of the login must be readable: {exc}") from None
        read_credentials(text, name)

    async def _connect(self) -> NatsClient:
        from liftenvelope.nats.closing import close_connection
        from liftenvelope.nats.logins import with_login_of
        from liftenvelope.nats.program_client import new_client

        # After liftenvelope.nats, which imports it without aiohttp.
        # isort: split
        import nats.errors

        self._check_credentials()
        seen: list[Exception] = []

        async def note(exc: Exception) -> None:
            seen.append(exc)
            del seen[:-_NOTED]

        options = with_login_of(self.urls, self._options())
        nc = new_client(self.urls, tls="tls" in options)
        bad_seed = _seed_errors() if self.context.creds or self.context.nkey else ()
        try:
            async with asyncio.timeout(self.timeout):
                await nc.connect(list(self.urls), error_cb=note, **options)
        except bad_seed as exc:
            await close_connection(nc)
            raise UsageError(f"creds or nkey must have a valid seed, got {type(exc).__name__}") from None
        except (nats.errors.Error, OSError, ValueError) as exc:
            await close_connection(nc)
            self._fail([exc, *seen])
        nc.options["max_reconnect_attempts"] = _ATTEMPTS  # the first connection fails at once
        return nc

    def _options(self) -> dict[str, Any]:
        context = self.context
        given: dict[str, Any] = {
            "user": context.user,
            "token": context.token,
            "user_credentials": context.creds,
            "nkeys_seed": context.nkey,
            "inbox_prefix": context.inbox_prefix,
            "tls": self._tls(),
            "tls_handshake_first": context.tls_first,
        }
        # nats-py sends no user at all without a password, and a user may have none.
        login = {"password": context.password} if context.user else {}
        return {
            **login,
            "name": "liftenvelope",
            "connect_timeout": self.timeout,
            "reconnect_time_wait": _PAUSE,
            "max_reconnect_attempts": _FIRST_ATTEMPTS,
            **{name: value for name, value in given.items() if value},
        }

    def _fail(self, errors: list[Exception]) -> NoReturn:
        """Raise the error that explains best why there is no connection.

        Args:
            errors: The error of the call, and those of single attempts. Each attempt may fail in another way.
        """
        from liftenvelope.nats.logins import is_refused_login, refused_login

        error = errors[-1]
        text = without_secrets(str(error) or type(error).__name__)
        if isinstance(error, OSError) and error.filename:
            raise UsageError(f"a file of the login must be readable: {text}") from None
        if any(map(is_refused_login, errors)):
            raise PermissionDeniedError(0, refused_login(self.where)) from None
        if isinstance(error, ConnectionResetError):
            text = f"{text}. A server that refuses a login does that too"
        if isinstance(error, TimeoutError):
            text = f"no answer within {self.timeout:g} s"
        raise TransportError(f"can't connect to NATS at {self.where}: {text}{_advice_for(error)}") from None


def _advice_for(error: BaseException) -> str:
    """Return what to check if there may be no server: refused, unreachable, an unknown name, or no answer."""
    import ssl

    while error.__cause__ is not None and not isinstance(error, TimeoutError):
        error = error.__cause__
    if isinstance(error, TimeoutError):
        return _ADVICE
    # Our own errors, some of which are OSErrors, are then about something that a server has sent.
    is_there = isinstance(error, ssl.SSLError | ConnectionResetError | LiftEnvelopeError)
    return _ADVICE if isinstance(error, OSError) and not is_there else ""


def _seed_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a malformed seed raises.

    Raises:
        MissingExtraError: The package nkeys is not installed.
    """
    try:
        import nkeys
    except ModuleNotFoundError as exc:
        text = "a login by creds or nkey needs nkeys: run pip install nkeys"
        raise MissingExtraError(text, name="nkeys") from exc
    return (nkeys.NkeysError,)


def _report(event: ClientEvent) -> None:
    """Tell the user of a lost connection, which explains a pause."""
    from liftenvelope.client import SubscriptionLost, SubscriptionResumed

    if isinstance(event, SubscriptionLost | SubscriptionResumed):
        what = "lost, reconnecting" if isinstance(event, SubscriptionLost) else "back"
        click.echo(f"Note: partition {event.partition} is {what}", err=True)


def find_servers(
    url: str | None, context: str | None, timeout: float, *, from_environment: str | None = None
) -> CommandServers:
    """Return the servers that options stand for.

    A URL from the command line comes first, with the login of ``--context`` if that is given too. Then come
    ``--context``, the URL of the environment, and the context that ``nats context select`` has chosen. A
    selected context is not used with a URL, so that its login goes to no other server.

    Args:
        url: URL of the option.
        context: Name of a context.
        timeout: Seconds to wait for a connection, an answer or an ack.
        from_environment: URL of the environment.

    Raises:
        UsageError: No server is named, a URL or the context is invalid, or the URLs are of two kinds.
    """
    as_seconds("--timeout", timeout)
    if url is None and context is None:
        url = from_environment or None
    name = context if context is not None else selected_context() if url is None else ""
    if url is None and not name:
        raise UsageError("--url, LIFTENVELOPE_URL or --context must name servers, such as nats://localhost")
    settings = read_context(name) if context is not None or name else NatsContext(name="")
    text, scheme = (settings.url, "nats") if url is None else (url, "liftbridge")
    found = [_parsed(part.strip(), scheme) for part in text.split(",")]
    if len({scheme for scheme, _ in found}) > 1:
        raise UsageError("--url must have servers of one kind, NATS or Liftbridge")
    return CommandServers(
        scheme=found[0][0],
        urls=tuple(dict.fromkeys(one for _, one in found)),
        context=settings,
        timeout=timeout,
    )


def _parsed(text: str, scheme: str) -> tuple[str, str]:
    """Return the kind of a server, and its URL for nats-py or its address for the client of Liftbridge.

    Contexts name NATS servers also without a scheme. As for the other commands, ``host:port`` of an option is
    a Liftbridge server.
    """
    from liftenvelope.rpc.address import Address, parse_address

    url = text if "://" in text else f"{scheme}://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"--url must be {_EXPECTED}, got {without_secrets(url)!r}") from None
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment)
    if parts.scheme not in _PORTS or not parts.hostname or not is_plain:
        raise UsageError(f"--url must be {_EXPECTED}, got {without_secrets(url)!r}")
    address = Address(parts.hostname, port or _PORTS[parts.scheme])
    parse_address(str(address))
    if parts.scheme != "liftbridge":
        login, at, _ = parts.netloc.rpartition("@")
        return "nats", f"{parts.scheme}://{login}{at}{address}"
    if parts.username is not None:
        raise UsageError(f"--url of Liftbridge must not have a user, got {without_secrets(url)!r}")
    return "liftbridge", str(address)


def _complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in context_names() if name.startswith(incomplete)]


_URL = click.option(
    "--url",
    metavar="URL",
    help="nats://host:port for JetStream, liftbridge://host:port for Liftbridge; several between commas.  "
    "[env var: LIFTENVELOPE_URL]",
)
_CONTEXT = click.option(
    "--context",
    metavar="NAME",
    shell_complete=_complete_context,
    help="Context of the nats command, with servers and login.  [default: the selected one, without a URL]",
)
_TIMEOUT = click.option(
    "--timeout",
    type=DurationType(),
    default=f"{_TIMEOUT_DEFAULT:g}s",
    show_default=True,
    help="Time to wait for a connection, an answer or an ack.",
)


def with_source(work: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name servers to a command on :mod:`liftenvelope.bulk`.

    The command gets ``source`` and ``access``, the arguments of that package.
    """

    @_URL
    @_CONTEXT
    @functools.wraps(work)
    def command(*arguments: Any, url: str | None, context: str | None, **options: Any) -> None:
        found: dict[str, Any] = {}
        fail_cleanly(lambda: found.update(_bulk_source(url, context)))
        work(*arguments, **found, **options)

    return command


def named_servers(url: str | None, context: str | None) -> CommandServers:
    """Return the servers that the options of a command on :mod:`liftenvelope.bulk` stand for.

    Raises:
        UsageError: As :func:`find_servers`.
    """
    given = os.environ.get("LIFTENVELOPE_URL")
    return find_servers(url, context, _TIMEOUT_DEFAULT, from_environment=given)


def _bulk_source(url: str | None, context: str | None) -> dict[str, Any]:
    given = os.environ.get("LIFTENVELOPE_URL")
    servers = named_servers(url, context)
    if not servers.context.name:
        return {"source": url if url is not None else given, "access": None}
    return {"source": list(servers.urls), "access": servers.access()}


def on_servers(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Add the options that name servers, and call a coroutine function with the servers as first argument.

    Errors become errors of the command: exit code 2 for wrong usage, 1 for all others.
    """

    @_URL
    @_CONTEXT
    @_TIMEOUT
    @functools.wraps(work)
    def command(url: str | None, context: str | None, timeout: float, **options: Any) -> None:
        def run() -> None:
            given = os.environ.get("LIFTENVELOPE_URL")
            servers = find_servers(url, context, timeout, from_environment=given)
            run_until_terminated(work(servers, **options))

        fail_cleanly(run)

    return command
