"""A fuzzing campaign against the decoders, guided by coverage, under ASan and UBSan.

    python tests/fuzz/campaign.py                         # `make soak`: 10 million inputs for each decoder
    python tests/fuzz/campaign.py --inputs 100000         # a slice
    python tests/fuzz/campaign.py --seed 7 --decoder ack  # the same inputs again

One process a decoder: of messages and acks in envelopes, of bare messages as they are stored, and of publish
responses. Each input goes to the parser (from a block of exactly its size), to the function that makes a
value of it, and to the batch decoder; all must agree. Samples go to the Python
twins as well: what the codec refuses they must refuse, what it takes they must read alike, field by field
and column by column. On a failure the input and the seed are printed and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import mmap
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

# Last: a worker must find the sanitized liftenvelope before the checkout's.
sys.path.append(str(Path(__file__).parent.parent.parent))

from tests.fuzz import sanitized

DECODERS = ("message", "ack", "stored", "response")
GO_CORPUS = sanitized.ROOT / "tests" / "unit" / "data" / "go_corpus.jsonl.gz"
BATCH = 4_000
LARGEST = 2_048
#: Python is a thousand times slower than what is tested: of the inputs that are taken, of those that are
#: refused and of the batches, every so-manyth goes to the twin; of a batch this many rows.
EVERY_TAKEN, EVERY_REFUSED, EVERY_BATCH, ROWS = 32, 64, 16, 100
BORING = tuple(
    bytes.fromhex(head) for head in ("b90e43b400080000", "b90e43b400080001", "b90e43b4000c010000000000")
)


def seeds(decoder: str) -> list[bytes]:
    """Envelopes to begin with: those of the Go corpus, sound and broken, and responses made of its acks."""
    kind = {"stored": "message", "response": "ack"}.get(decoder, decoder)
    records = [json.loads(line) for line in gzip.decompress(GO_CORPUS.read_bytes()).splitlines()]
    of_kind = [record for record in records if record.get("type", record["kind"]) == kind]
    corpus = [*BORING, *(bytes.fromhex(record["hex"]) for record in of_kind)]
    return [response_around(data) for data in corpus] if decoder == "response" else corpus


def response_around(envelope: bytes) -> bytes:
    """A PublishResponse with the payload of an ack's envelope, behind the same header."""
    ack = envelope[8:][:120]
    parts = (b"\x0a" + bytes((len(ack),)) + ack, b"\x12\x06\x08\x05\x12\x02no", b"\x1a\x02id")
    return envelope[:8] + b"".join(parts)


@dataclass
class Codec:
    """The functions of one decoder, in both twins."""

    read: Any
    twin: Any
    explained: tuple[Any, str]  # what the Cython twin has explain a refusal: module and name
    columns: Any
    twin_columns: Any
    fields: tuple[str, ...]  # none: the values are tuples


def codec_of(decoder: str) -> Codec:
    from liftenvelope import _batch_py, _envelope_py, _fastenv, _payloads_py, _values_py

    module, name, fields = {
        "message": (_envelope_py, "unmarshal_message", _values_py.MESSAGE_FIELDS),
        "ack": (_envelope_py, "unmarshal_ack", _values_py.ACK_FIELDS),
        "stored": (_payloads_py, "read_stored", _values_py.MESSAGE_FIELDS),
        "response": (_payloads_py, "read_response", ()),
    }[decoder]
    twin = getattr(module, name)
    bare: Any = {"stored": _fastenv.read_messages, "response": _fastenv.read_publish_responses}.get(decoder)
    return Codec(
        getattr(_fastenv, name) if bare is None else lambda data: bare([data])[0],
        twin if bare is None else partial(twin, 0),
        (module, name),
        partial(columns, decoder, import_module("liftenvelope._fastbatch")),
        partial(columns, decoder, _batch_py),
        fields,
    )


def columns(decoder: str, batch: Any, rows: list[bytes]) -> Any:
    """What the batch decoder makes of rows; None where there is none."""
    column = batch.Column.of_sequence(rows, "rows", False)
    if decoder == "message":
        return batch.MessageColumns(column, False, False, bytearray)
    if decoder == "ack":
        return batch.AckColumns(column, False, bytearray)
    return batch.StoredColumns(column, bytearray) if decoder == "stored" else None


class Sparing:
    """Stands in for the twin where the codec has it explain a refusal: it does so once in a while."""

    def __init__(self, twin: Any, refusal: type[Exception]) -> None:
        self.twin, self.refusal, self.count = twin, refusal, 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        if self.count % EVERY_REFUSED:
            raise self.refusal("not explained")
        return self.twin(*arguments)


def compare_values(codec: Codec, data: bytes, value: Any) -> None:
    """Hold what the Cython codec read to what its twin reads."""
    twin = codec.twin(data)
    if not codec.fields:
        if repr(value) != repr(twin):
            raise AssertionError(f"it is {value!r}, and {twin!r} by the twin")
        return
    for name in codec.fields:
        ours, theirs = getattr(value, name), getattr(twin, name)
        if ours != theirs or type(ours) is not type(theirs):
            raise AssertionError(f"{name} is {ours!r}, and {theirs!r} by the twin")


def compare_batches(decoder: str, codec: Codec, inputs: list[bytes], taken: list[bool]) -> None:
    """Hold the batch decoder to the parser."""
    if decoder == "response":
        return
    bad: Any = [row for row, sound in enumerate(taken) if not sound]
    found = codec.columns(inputs)
    if decoder == "stored":
        if found.bad != (bad[0] if bad else -1):
            raise AssertionError("the batch decoder stops at another row than the parser")
        found = codec.columns([data for data, sound in zip(inputs, taken, strict=True) if sound])
        bad = -1
    if found.bad != bad:
        raise AssertionError("the batch decoder takes other rows than the parser")
    for column in found.columns().values():
        plain(column)


def compare_columns(decoder: str, codec: Codec, inputs: list[bytes], taken: list[bool]) -> None:
    """Hold the columns of the batch decoder to those of its twin."""
    if decoder == "response":
        return
    if decoder == "stored":  # a batch has no place for rows that are not sound
        inputs = [data for data, sound in zip(inputs, taken, strict=True) if sound]
    made, twins = (each(inputs[:ROWS]).columns() for each in (codec.columns, codec.twin_columns))
    different = [name for name in twins if plain(made[name]) != plain(twins[name])]
    if different:
        raise AssertionError(f"columns {', '.join(different)} are not the twin's")


def plain(column: Any) -> Any:
    """The buffers of a column as bytes."""
    if isinstance(column, tuple):
        return tuple(part if part is None or isinstance(part, int) else bytes(part) for part in column)
    return None if column is None else bytes(column)


def work(decoder: str, inputs: int, seed: int, note_file: Path) -> None:
    """Fuzz one decoder in this process."""
    from liftenvelope import _fastenv
    from liftenvelope.errors import EnvelopeError

    engine: Any = import_module("liftenvelope_fuzz_engine")  # of the sanitized build alone
    assert str(sanitized.LIBRARY) in str(_fastenv.__file__), "this is not the sanitized build"
    codec, done, began, shown = codec_of(decoder), 0, time.monotonic(), 0.0
    module, name = codec.explained
    setattr(module, name, Sparing(getattr(module, name), EnvelopeError))
    with note_file.open("r+b") as file, mmap.mmap(file.fileno(), 0) as note:
        kind = DECODERS.index(decoder)
        fuzzer = engine.Fuzzer(kind, seed, seeds(decoder), codec.read, EnvelopeError, note)
        while done < inputs:
            count = min(BATCH, inputs - done)
            batch, taken = fuzzer.run(
                count, lambda data, value: compare_values(codec, data, value), EVERY_TAKEN
            )
            compare_batches(decoder, codec, batch, taken)
            if (done // BATCH) % EVERY_BATCH == 0:
                compare_columns(decoder, codec, batch, taken)
            done += count
            if time.monotonic() - shown > 5 or done == inputs:
                shown = time.monotonic()
                show(decoder, done, inputs, shown - began, fuzzer)
        del fuzzer  # it holds a view of the note


def show(decoder: str, done: int, inputs: int, seconds: float, fuzzer: Any) -> None:
    """The progress line."""
    share = fuzzer.accepted / (fuzzer.accepted + fuzzer.refused)
    print(
        f"{decoder:8} {done:>12,} of {inputs:,} inputs  {done / seconds:>9,.0f}/s  {share:4.0%} taken  "
        f"{fuzzer.edges} edges  {fuzzer.kept} inputs kept",
        flush=True,
    )


def start(decoder: str, options: argparse.Namespace, note: Path) -> subprocess.Popen[bytes]:
    """A process that fuzzes one decoder."""
    note.write_bytes(bytes(4 + LARGEST))
    arguments = ["--worker", str(note), "--decoder", decoder, "--seed", str(options.seed)]
    command = [sys.executable, __file__, *arguments, "--inputs", str(options.inputs)]
    return subprocess.Popen(command, cwd=sanitized.ROOT, env=sanitized.environment())


def report(decoder: str, status: int, seed: int, note: Path) -> None:
    """Say what failed, and how to see it again."""
    raw = note.read_bytes()
    size = int.from_bytes(raw[:4], sys.byteorder)
    print(f"\n{decoder}: FAILED with exit status {status}; the last input was\n    {raw[4 : 4 + size].hex()}")
    print(f"again: python tests/fuzz/campaign.py --decoder {decoder} --seed {seed}", flush=True)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuzz the decoders under ASan and UBSan.")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="for each decoder")
    parser.add_argument("--decoder", choices=DECODERS, help="one alone; default: all, at the same time")
    parser.add_argument("--seed", type=int, help="the same seed gives the same inputs; default: a new one")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**32)
    return options


def main(arguments: list[str]) -> int:
    """Build, fuzz, report."""
    options = parsed(arguments)
    if options.worker:
        work(options.decoder, options.inputs, options.seed, options.worker)
        return 0
    sanitized.build()
    decoders = (options.decoder,) if options.decoder else DECODERS
    print(f"seed {options.seed}", flush=True)
    notes = {decoder: sanitized.BASE / f"last-{decoder}.bin" for decoder in decoders}
    running = {decoder: start(decoder, options, notes[decoder]) for decoder in decoders}
    failed = 0
    for decoder, process in running.items():
        if process.wait() != 0:
            failed += 1
            report(decoder, process.returncode, options.seed, notes[decoder])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
