"""Tables ``[pipeline.access]`` and ``[pipeline.on_bad.access]``: connection options, PEM files included."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from liftenvelope._checks import as_full_text
from liftenvelope._secrets import without_secrets
from liftenvelope.archive._toml_tables import check_table
from liftenvelope.bulk import Access
from liftenvelope.errors import UsageError
from liftenvelope.rpc.tls_files import client_context

__all__ = ["AccessConfig", "read_access"]

#: Keys for PEM files, from which the TLS context of Access is made.
_TLS_FILES: Final = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Connection options whose TLS files are read when they are used.

    Attributes:
        options: Connection options, but for the TLS files.
        tls_files: PEM files of ``tls_ca``, ``tls_cert`` and ``tls_key``, None for those not given; None for
            no files.
    """

    options: Access = field(default_factory=Access)
    tls_files: tuple[str | None, str | None, str | None] | None = None

    def open(self) -> Access:
        """Return the connection options, with what the TLS files hold now.

        Raises:
            UsageError: A file can't be read, or the files do not belong together.
        """
        if self.tls_files is None:
            return self.options
        try:
            return replace(self.options, tls=client_context(*self.tls_files))
        except OSError as exc:
            given = ", ".join(repr(without_secrets(path)) for path in self.tls_files if path is not None)
            text = f"{', '.join(_TLS_FILES)} must be PEM files that belong together, got {given}: {exc}"
            raise UsageError(text) from exc


def read_access(here: str, table: Any) -> AccessConfig:
    """Return the connection options of a table, after a look at its files.

    Args:
        here: Name of the table, for errors.
        table: The table.

    Raises:
        UsageError: A key is unknown, a value is invalid, or a file can't be read.
    """
    check_table(here, table, {one.name for one in fields(Access)} | {*_TLS_FILES})
    options = {name: value for name, value in table.items() if name not in _TLS_FILES}
    ca, cert, key = (
        as_full_text(f"{here} {name}", table[name]) if name in table else None for name in _TLS_FILES
    )
    given = [name for name in _TLS_FILES if name in table]
    if given and not options.setdefault("tls", True):
        raise UsageError(f"{here} tls = false and {given[0]} exclude each other; leave one of them out")
    if key is not None and cert is None:
        raise UsageError(f"{here} tls_key needs tls_cert; give both")
    try:
        found = AccessConfig(Access(**options), (ca, cert, key) if given else None)
        found.open()
    except UsageError as exc:
        raise UsageError(f"{here} {exc}") from exc
    return found
