"""Measure everything and write RESULTS.md; arguments go to pytest: ``python -m benchmarks -k codec``.

The page is written if all benchmarks pass, so a run without arguments ends at the first that fails.
"""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_RESULTS = () if sys.argv[1:] else ("--exitfirst", f"--results={_HERE / 'RESULTS.md'}")

# A process of its own: pytest cannot rewrite the assertions of this package once it is imported.
os.execv(
    sys.executable,
    [
        sys.executable,
        "-m",
        "pytest",
        str(_HERE),
        f"--ignore={_HERE / 'spark'}",  # which has a page of its own
        "-q",
        "--benchmark-enable",
        "--benchmark-quiet",
        "--timeout=900",
        *_RESULTS,
        *sys.argv[1:],
    ],
)
