"""A campaign of faults against servers, connections and processes: ``python -m tests.faults --seeds 200``.

Each seed makes a plan: servers, a path that messages take, and a schedule of faults. The campaign records
the outcome that the package reports for every message, and then compares the outcomes with what the servers
have stored. ``messages``, ``ledger``, ``checker`` and ``plan`` do no I/O.
"""
