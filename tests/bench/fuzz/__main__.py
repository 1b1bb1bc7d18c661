"""`python -m tests.bench.fuzz`: valid documents with one change, for every reader of users' bytes.

No input may crash its reader, take more than ten seconds of a processor or more than 512 MB. The same seed
gives the same inputs: `--reader NAME --first N --inputs 1 --keep DIR` repeats one and keeps its document.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads is not to be forked

from ..processes import exit_on_signals, temporary_directory
from ..result import BenchError, Result, as_markdown
from .reader import Document, Reader
from .readers import checkpoints, files, node, runs, services
from .trial import Child, Counts, change_of

READERS = (*runs.READERS, *files.READERS, *checkpoints.READERS, *services.READERS, *node.READERS)
_OF_A_CHILD = 400
"""Inputs that one process reads."""
_SHOWN = 6
"""Failures of a reader that are printed."""


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 1 if a reader failed."""
    given = _parser().parse_args(arguments)
    exit_on_signals()
    chosen = [each for each in READERS if not given.reader or each.name in given.reader]
    began = time.monotonic()
    found: dict[str, Counts] = {}
    with temporary_directory() as place:
        for reader, count in shares(chosen, given.inputs).items():
            documents = make_documents(reader, Path(place))
            numbers = range(given.first, given.first + count)
            counts = read_all(reader, documents, numbers, Path(place), seed=given.seed, workers=given.workers)
            found[reader.name] = counts
            _show(reader, documents, counts, given.seed, given.keep)
    print(as_markdown(as_result(found, given.seed, time.monotonic() - began)))
    return 1 if any(each.failures for each in found.values()) else 0


def shares(readers: Sequence[Reader], inputs: int) -> dict[Reader, int]:
    """How many inputs each reader gets: at least one, by its share."""
    whole = sum(each.share for each in readers)
    return {each: max(1, round(inputs * each.share / whole)) for each in readers}


def make_documents(reader: Reader, place: Path) -> list[Document]:
    """Its valid documents. Raises BenchError if it accepts none of them as it is."""
    made = place / "documents"
    made.mkdir(exist_ok=True)
    documents = list(reader.documents(made))
    found = read_all(reader, documents, range(-len(documents), 0), place)
    if found.failures or not found.accepted:
        raise BenchError(f"{reader.name} accepts none of its documents: {found.failures}")
    return documents


def read_all(
    reader: Reader,
    documents: Sequence[Document],
    numbers: range,
    place: Path,
    *,
    seed: int = 0,
    workers: int = 2,
) -> Counts:
    """Read the inputs of these numbers in child processes, which work in folders below `place`."""
    found = Counts()
    waiting = [numbers[at : at + _OF_A_CHILD] for at in range(0, len(numbers), _OF_A_CHILD)]
    running: list[Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                folder = Path(tempfile.mkdtemp(dir=place))
                running.append(Child(reader, documents, seed, waiting.pop(0), folder))
            time.sleep(0.02)
            for child in list(running):
                counts = child.ended()
                if counts is not None:
                    running.remove(child)
                    found.add(counts)
                    rest = child.numbers[counts.inputs :]
                    waiting += [rest] if rest else []  # a process broke: another one goes on behind
    finally:
        for child in running:
            child.kill()
    return found


def _show(reader: Reader, documents: Sequence[Document], found: Counts, seed: int, keep: Path | None) -> None:
    """Print what failed, and keep its documents."""
    for each in found.failures[:_SHOWN]:
        print(f"{each.what}: --reader {reader.name!r} --seed {seed} --first {each.number} --inputs 1")
        print(each.text)
    if len(found.failures) > _SHOWN:
        print(f"... and {len(found.failures) - _SHOWN} more")
    for each in found.failures if keep else ():
        chosen, name, data = change_of(reader.name, documents, seed, each.number)
        for other, content in {**chosen.files, name: data}.items():
            path = keep / f"{reader.name}-{each.number}".replace(" ", "_").replace("/", "_") / other
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    print(".", end="", file=sys.stderr, flush=True)
    sys.stdout.flush()


def as_result(found: Mapping[str, Counts], seed: int, seconds: float) -> Result:
    """The table."""
    whole = Counts()
    for each in found.values():
        whole.add(each)
    head = ("reader", "inputs", "accepted", "refused", "failed", "mean ms", "slowest s", "largest MiB")
    rows = [_row(name, each) for name, each in found.items()]
    note = f"seed {seed}, {seconds:.0f} s, {whole.seconds:.0f} s of processors"
    return Result(title="Fuzz", rows=(), overview=(head, *rows, _row("all", whole)), notes=(note,))


def _row(name: str, found: Counts) -> tuple[str, ...]:
    mean = 1e3 * found.seconds / max(1, found.inputs)
    numbers = (f"{each:,}" for each in (found.inputs, found.accepted, found.refused, len(found.failures)))
    return (name, *numbers, f"{mean:.1f}", f"{found.slowest[0]:.2f}", f"{found.largest[0] / 2**20:.0f}")


def _parser() -> argparse.ArgumentParser:
    names = [each.name for each in READERS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fuzz", description=__doc__, epilog=f"readers: {', '.join(names)}"
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="of all readers (default 100000)")
    parser.add_argument("--seed", type=int, default=1, help="another one gives other inputs (default 1)")
    parser.add_argument("--reader", action="append", choices=names, metavar="NAME", help="only this one")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the documents of failures here")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
