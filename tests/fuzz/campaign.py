"""A fuzzing campaign against every extension, guided by coverage, under ASan and UBSan.

    python tests/fuzz/campaign.py                          # `make soak`: 10 million inputs for each target
    python tests/fuzz/campaign.py --inputs 100000          # a slice
    python tests/fuzz/campaign.py --seed 7 --target acks   # the same inputs again
    python tests/fuzz/campaign.py --target acks --input 0200616200   # one input, in hexadecimal, alone

Each target has a process; one process per processor runs at a time. An input is a list of chunks, and a
target (`tests/fuzz/targets/`) turns chunks into calls of its extension. Inputs that reach new edges of the
extension are kept and changed further. Every input must pass without a report of a sanitizer and without an
error that the target does not expect. Inputs that reach new edges, and one in 64 of the others, also go to
the Python twin, which must give the same result. Targets that read a stream take short inputs byte by byte
as well, with the same result. On a failure, the campaign prints the input and the command that runs it
again, and exits with status 1.

The rate that is printed is inputs per second of processor time.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import multiprocessing
import os
import random
import subprocess
import sys
import time
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from typing import Any

# Last: a worker must find the sanitized liftenvelope before the checkout's.
sys.path.append(str(Path(__file__).parent.parent.parent))

from tests.fuzz import sanitized

BATCH = 4_000
LARGEST = 2_048
#: Of the inputs without a new edge, one in so many goes to the twin: Python takes up to 1,000 times as long.
EVERY = 64
#: Seconds between two lines of progress.
PAUSE = 10


class Explained:
    """Stands in for the Python twin where an extension has it explain a refusal: most are not read."""

    def __init__(self, twin: Any, refusal: type[Exception]) -> None:
        self.twin, self.refusal, self.wanted = twin, refusal, False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self.wanted:
            raise self.refusal("not explained")
        return self.twin(*arguments, **options)


class Campaign:
    """One target in this process."""

    def __init__(self, target: Any, seed: int, note: Any) -> None:
        # Only the sanitized build has the engine.
        self.engine: Any = import_module("liftenvelope_fuzz_engine")
        self.target, (self.extension, _) = target, target.twins()
        if not str(self.extension.__file__).startswith(str(sanitized.LIBRARY)):
            raise SystemExit(f"{self.extension.__file__} is not the sanitized build")
        self.explained: list[Explained] = []
        if target.explained:
            package = import_module("tests.fuzz.target").PACKAGE
            module, name = import_module(f"{package}.{target.explained[0]}"), target.explained[1]
            self.explained = [Explained(getattr(module, name), target.refusals[0])]
            setattr(module, name, self.explained[0])
        self.engine.watch(self.extension.__file__)
        shape = (target.format, target.bars, target.most)
        self.fuzzer = self.engine.Fuzzer(
            seed, shape, target.words, self.work, target.refusals, self.check, EVERY, note
        )

    def work(self, chunks: list[bytes]) -> None:
        self.target.run(self.extension, chunks, self.engine.exact)

    def check(self, chunks: list[bytes]) -> None:
        for one in self.explained:
            one.wanted = True
        self.target.check(chunks)
        for one in self.explained:
            one.wanted = False

    def begin(self) -> int:
        """Run the seeds; returns the edges that they reach."""
        for chunks in self.target.seeds():
            self.fuzzer.one(self.engine.pack(chunks))
        return int(self.engine.edges())

    def run(self, inputs: int) -> None:
        """Make and run inputs, and show the progress."""
        done, began, shown, first = 0, time.process_time(), 0.0, self.begin()
        gc.disable()  # in the middle of an input, it would reach edges of its own
        while done < inputs:
            count = min(BATCH, inputs - done)
            self.fuzzer.run(count)
            gc.collect(0)
            done += count
            if time.monotonic() - shown > PAUSE or done == inputs:
                shown = time.monotonic()
                self.show(done, inputs, time.process_time() - began, first)

    def show(self, done: int, inputs: int, seconds: float, first: int) -> None:
        """Print the progress; seconds are those of the processor, which others may use as well."""
        share = self.fuzzer.accepted / (self.fuzzer.accepted + self.fuzzer.refused)
        print(
            f"{self.target.name:15} {done:>10,} of {inputs:,} inputs {done / seconds:>7,.0f}/s"
            f"  {share:4.0%} taken  edges {first} -> {self.engine.edges()}  {self.fuzzer.kept} inputs kept",
            flush=True,
        )


def work(target: Any, options: argparse.Namespace, note: mmap.mmap) -> None:
    """Fuzz one target, in a process of its own."""
    os.nice(10)  # tests that run beside it come first
    campaign = Campaign(target, options.seed, note)
    if options.input is not None:
        campaign.fuzzer.one(options.input)
    else:
        campaign.run(max(options.inputs // target.share, 1))


def fuzz(options: argparse.Namespace) -> bool:
    """Fuzz the targets, each in a fork of this process; return True if no input failed.

    A report of a sanitizer ends its process. Forks, because the imports take seconds under the sanitizers.
    """
    # The extensions key their hash tables on import, which is below: keys that follow the seed give the same
    # edges again.
    os.urandom = random.Random(options.seed).randbytes
    targets = import_module("tests.fuzz.targets")
    known = {**targets.TARGETS, **targets.PLANTED}
    import_module("liftenvelope_fuzz_engine")
    names = [options.target] if options.target else list(targets.TARGETS)
    fork, sound = multiprocessing.get_context("fork"), True
    running: dict[int, tuple[Any, mmap.mmap]] = {}
    while names or running:
        while names and len(running) < options.jobs:
            name, note = names.pop(0), mmap.mmap(-1, 4 + LARGEST)
            process = fork.Process(target=work, args=(known[name], options, note), name=name)
            process.start()
            running[process.sentinel] = process, note
        for ended in connection.wait(list(running)):
            assert isinstance(ended, int)  # a sentinel
            process, note = running.pop(ended)
            process.join()
            sound &= passed(process.name, process.exitcode, note, options.seed)
    return sound


def passed(name: str, status: int, note: mmap.mmap, seed: int) -> bool:
    """Return True if a process ended well; otherwise say what failed, and how to run it again."""
    if status:
        data = note[4 : 4 + int.from_bytes(note[:4], sys.byteorder)]
        print(f"\n{name}: FAILED with exit status {status} by seed {seed}, last input {data!r}")
        print(f"again: python tests/fuzz/campaign.py --target {name} --input {data.hex()}", flush=True)
    return status == 0


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuzz the extensions under ASan and UBSan.")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="for each target")
    parser.add_argument("--target", help="one alone; default: all")
    parser.add_argument("--seed", type=int, help="the same seed gives the same inputs; default: a new one")
    parser.add_argument("--input", type=bytes.fromhex, help="run this one alone, in hexadecimal")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per processor"
    )
    parser.add_argument("--sanitized", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.jobs < 1:  # no process would ever start
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**32)
    return options


def main(arguments: list[str]) -> int:
    """Build, fuzz, report."""
    options = parsed(arguments)
    if options.sanitized:
        return 0 if fuzz(options) else 1
    sanitized.build()
    print(f"seed {options.seed}", flush=True)
    command = [sys.executable, __file__, "--sanitized", *arguments, "--seed", str(options.seed)]
    return subprocess.run(command, cwd=sanitized.ROOT, env=sanitized.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
