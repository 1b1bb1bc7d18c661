"""Runs the parts of the acceptance one after another, each in a process group of its own with a time limit.

After each part OUT_DIR holds what was found so far: `results.json`, `results.txt`, `log.txt`, and all raw
files in `raw.tar.gz`. A part that fails, hangs or crashes stops no other part.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu.node import Context
from gpu.parts import PARTS, Part

BUDGET_SECONDS = 570.0
LEAST_SECONDS = 10.0
"""With less time left no part begins."""
RAW_BYTES = 14 << 20
PART_BYTES = 2 << 20
"""Most bytes of one part in the archive, compressed, so that no part takes the place of the others."""


OUTCOMES = ("passed", "failed", "skipped", "not run")


@dataclass(frozen=True)
class Result:
    """A row of the table."""

    part: str
    outcome: str
    """One of OUTCOMES."""
    expected: str
    found: str
    seconds: float


class RawFiles:
    """`raw.tar.gz`: each file is a gzip member of its own, so the archive is whole after each of them."""

    def __init__(self, path: Path, limit: int = RAW_BYTES) -> None:
        self._path, self._limit, self._size = path, limit, 0
        path.write_bytes(b"")

    def add(self, folder: Path, prefix: str, limit: int = PART_BYTES) -> list[str]:
        """Adds the files of a folder, smallest first; returns what did not fit."""
        left_out, left = [], limit
        files = [each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()]
        for file in sorted(files, key=lambda each: each.stat().st_size):
            name = f"{prefix}/{file.relative_to(folder)}"
            packed = _packed(file, name)
            if len(packed) > min(left, self._limit - self._size):
                left_out.append(f"{name} ({len(packed)} bytes)")
                continue
            with self._path.open("ab") as archive:
                archive.write(packed)
            self._size += len(packed)
            left -= len(packed)
        return left_out


def _packed(file: Path, name: str) -> bytes:
    """A tar entry without the end of an archive, compressed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(file, name)
        end = archive.offset
    return gzip.compress(buffer.getvalue()[:end], 6)


def run_part(part: Part, limit: float, scratch: Path, arguments: Sequence[str], log: Path) -> Result:
    """A part in its own process group, killed at the limit. What it left in `scratch` remains."""
    scratch.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "gpu.acceptance",
        str(scratch),
        "--only",
        part.name,
        "--limit",
        str(limit),
        *arguments,
    ]
    began = time.monotonic()
    with log.open("a") as output:
        output.write(f"\n===== {part.name}, at most {limit:.0f} s\n")
        output.flush()
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(limit)
            cut = ""
        except subprocess.TimeoutExpired:
            cut = f"cut off after {limit:.0f} s"
        finally:
            _kill_group(process)
    seconds = time.monotonic() - began
    kept = scratch / "result.json"
    if not cut and kept.exists():
        outcome, found = json.loads(kept.read_text())
        return Result(part.name, outcome, part.expected, found, seconds)
    notes = scratch / "notes.txt"
    seen = notes.read_text().splitlines() if notes.exists() else []
    found = "; ".join([cut or f"ended with status {process.returncode}", *seen])
    return Result(part.name, "failed", part.expected, found, seconds)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """The part and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def only(part: Part, context: Context) -> None:
    """Runs a part in this process and keeps its result."""
    try:
        passed, found = part.run(context)
        outcome = "passed" if passed else "failed"
    except Exception as error:  # noqa: BLE001  whatever it is, it is the result
        traceback.print_exc()
        outcome, found = "failed", f"{type(error).__name__}: {error}"
    found = "; ".join([found, *context.notes])
    (context.raw / "result.json").write_text(json.dumps([outcome, found]))


def table(results: Iterable[Result]) -> str:
    """The results for a person: a paragraph of each part."""
    rows = list(results)
    counts = {
        each: sum(row.outcome == each for row in rows) for each in ("passed", "failed", "skipped", "not run")
    }
    lines = [", ".join(f"{number} {name}" for name, number in counts.items()), ""]
    for row in rows:
        lines.append(f"{row.part:<12} {row.outcome:<8} {row.seconds:6.1f} s")
        for name in ("expected", "found"):
            text = textwrap.wrap(getattr(row, name), 100) or [""]
            lines += [f"    {name:<9} {text[0]}", *(f"{'':14}{line}" for line in text[1:])]
    return "\n".join(lines) + "\n"


def write(results: Sequence[Result], out: Path) -> None:
    (out / "results.json").write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    (out / "results.txt").write_text(table(results))


def run_all(chosen: Sequence[Part], out: Path, *, rehearse: bool, budget: float) -> list[Result]:
    """Every part that fits into the budget. OUT_DIR is written after each."""
    out.mkdir(parents=True, exist_ok=True)
    log, results, ends = out / "log.txt", [], time.monotonic() + budget
    log.write_text("")
    archive = RawFiles(out / "raw.tar.gz")
    scratch = Path(tempfile.mkdtemp(prefix="rwa"))  # short: sockets are below it
    try:
        for part in chosen:
            left = ends - time.monotonic()
            if left < LEAST_SECONDS:
                results.append(Result(part.name, "not run", part.expected, f"{left:.0f} s were left", 0.0))
            elif rehearse and part.needs_gpu:
                results.append(Result(part.name, "skipped", part.expected, "needs a GPU", 0.0))
            else:
                arguments = ["--rehearse"] if rehearse else []
                folder = scratch / part.name
                results.append(run_part(part, min(part.limit, left - 3.0), folder, arguments, log))
                left_out = archive.add(folder, f"raw/{part.name}")
                if left_out:
                    with log.open("a") as output:
                        output.write("not kept: " + ", ".join(left_out) + "\n")
            write(results, out)
            print(
                f"{part.name}: {results[-1].outcome} in {results[-1].seconds:.0f} s: {results[-1].found}"[
                    :600
                ]
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(each.name for each in PARTS))
    parser.add_argument("--rehearse", action="store_true", help="on CPUs with gloo, as far as that goes")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    by_name = {each.name: each for each in PARTS}
    unknown = set(given.parts) - set(by_name)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    if given.only:
        only(by_name[given.only], Context(given.out, rehearse=given.rehearse, limit=given.limit))
        return 0
    chosen = [by_name[each] for each in given.parts] or list(PARTS)
    budget = float(os.environ.get("ACCEPTANCE_SECONDS", BUDGET_SECONDS))
    results = run_all(chosen, given.out.resolve(), rehearse=given.rehearse, budget=budget)
    print((given.out / "results.txt").read_text())
    return 0 if all(each.outcome in ("passed", "skipped") for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
