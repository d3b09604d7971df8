"""``python -m benchmarks.spark`` measures Spark's sources, sinks and functions and writes RESULTS-SPARK.md.

It ends at the first failure. With arguments, which pytest gets (``-k source`` for one group), it only shows
its table. ``--results=FILE`` writes it elsewhere.
"""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_RESULTS = () if sys.argv[1:] else ("--exitfirst", f"--results={_HERE.parent / 'RESULTS-SPARK.md'}")

os.execv(
    sys.executable,
    [
        sys.executable,
        "-m",
        "pytest",
        str(_HERE),
        "-q",
        "--benchmark-enable",
        "--benchmark-quiet",
        "--timeout=1800",
        *_RESULTS,
        *sys.argv[1:],
    ],
)
