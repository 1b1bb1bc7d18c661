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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from threading import Lock

from gpu.node import Context
from gpu.parts import PARTS, Part

BUDGET_SECONDS = 570.0
LEAST_SECONDS = 10.0
"""With less time left no part begins."""
LOG, LOG_BYTES = "log.txt", 60_000
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
            try:
                packed = _packed(file, name)
            except OSError as error:
                left_out.append(f"{name} ({error})")
                continue
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


def run_part(part: Part, limit: float, folder: Path, arguments: Sequence[str]) -> Result:
    """A part in its own process group, killed at the limit. What it left in its folder remains."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gpu.acceptance", str(folder), *arguments]
    command += ["--only", part.name, "--limit", str(limit)]
    began, cut = time.monotonic(), ""
    with (folder / LOG).open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            cut = f"cut off after {limit:.0f} s"
        finally:
            _kill_group(process)
    seconds, kept = time.monotonic() - began, folder / "result.json"
    with suppress(OSError, ValueError):  # no result, or one that was being written
        outcome, found = json.loads("" if cut else kept.read_text())
        return Result(part.name, outcome, part.expected, found, seconds)
    notes = folder / "notes.txt"
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
    counts = {each: sum(row.outcome == each for row in rows) for each in OUTCOMES}
    lines = [", ".join(f"{number} {name}" for name, number in counts.items()), ""]
    for row in rows:
        lines.append(f"{row.part:<12} {row.outcome:<8} {row.seconds:6.1f} s")
        for name in ("expected", "found"):
            text = textwrap.wrap(getattr(row, name), 100) or [""]
            lines += [f"    {name:<9} {text[0]}", *(f"{'':14}{line}" for line in text[1:])]
    return "\n".join(lines) + "\n"


class Acceptance:
    """All parts that fit into the budget of seconds. OUT_DIR is written after each."""

    def __init__(self, out: Path, *, rehearse: bool, budget: float) -> None:
        self.results: list[Result] = []
        self._out, self._rehearse = out, rehearse
        self._ends = time.monotonic() + budget
        out.mkdir(parents=True, exist_ok=True)
        (out / LOG).write_text("")
        self._archive, self._lock = RawFiles(out / "raw.tar.gz"), Lock()

    def run(self, parts: Sequence[Part]) -> list[Result]:
        """Group after group."""
        scratch = Path(tempfile.mkdtemp(prefix="rwa"))  # short: sockets are below it
        try:
            for _, group in groupby(parts, lambda part: part.group or part.name):
                with ThreadPoolExecutor() as pool:
                    for _ in pool.map(lambda part: self._run(part, scratch / part.name), group):
                        pass
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return self.results

    def _run(self, part: Part, folder: Path) -> None:
        left = self._ends - time.monotonic()
        if self._rehearse and part.needs_gpu:
            result = Result(part.name, "skipped", part.expected, "needs a GPU", 0.0)
        elif left < LEAST_SECONDS:
            result = Result(part.name, "not run", part.expected, f"{left:.0f} s were left", 0.0)
        else:
            limit = left - 3.0 if self._rehearse else min(part.limit, left - 3.0)
            result = run_part(part, limit, folder, ["--rehearse"] if self._rehearse else [])
        with self._lock:
            self._keep(result, folder)

    def _keep(self, result: Result, folder: Path) -> None:
        self.results.append(result)
        (self._out / "results.json").write_text(
            json.dumps([asdict(each) for each in self.results], indent=1) + "\n"
        )
        (self._out / "results.txt").write_text(table(self.results))
        print(f"{result.part}: {result.outcome} in {result.seconds:.0f} s: {result.found}"[:600])
        if folder.exists():
            left_out = self._archive.add(folder, f"raw/{result.part}")
            printed = (folder / LOG).read_text(errors="replace")
            with (self._out / LOG).open("a") as log:
                log.write(f"\n===== {result.part}\n{printed[-LOG_BYTES:]}")
                log.write(f"not kept: {', '.join(left_out)}\n" if left_out else "")


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
    results = Acceptance(given.out.resolve(), rehearse=given.rehearse, budget=budget).run(chosen)
    print((given.out / "results.txt").read_text())
    return 0 if all(each.outcome in ("passed", "skipped") for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
