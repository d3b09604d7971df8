"""What every test shares: which examples hypothesis tries.

A run of the gate repeats itself: the same commit gives the same verdict. New examples are sought by
``make soak``, with ``--hypothesis-profile=search``; what that finds becomes a test with the example in it.
"""

from __future__ import annotations

from importlib.util import find_spec

from hypothesis import HealthCheck, settings

# A loaded machine is slow, and no finding.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("repeatable", _PATIENT, derandomize=True)
settings.register_profile("search", _PATIENT, max_examples=2_000, print_blob=True)
settings.load_profile("repeatable")

# `make test-spark` installs Spark before it runs these; other runs need not have it.
collect_ignore = [] if find_spec("pyspark") else ["spark"]
