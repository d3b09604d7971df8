"""One worker of ``liftenvelope serve --workers``, which starts this module as a program."""

from __future__ import annotations

import sys

from liftenvelope.cli._serving.logging import start_logging
from liftenvelope.gateway.worker import Worker

__all__ = ["worker_command"]


def worker_command() -> list[str]:
    """Return the command that starts a worker, with the warning options of this interpreter."""
    warnings = [part for option in sys.warnoptions for part in ("-W", option)]
    return [sys.executable, *warnings, "-m", __name__]


def main() -> int:
    """Serve until the supervisor stops the worker; return the exit status."""
    worker = Worker()
    settings = worker.settings
    start_logging(
        settings["log_level"], settings["log_format"], settings["nats_log_level"], settings["worker"]
    )
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
