"""A few of the inputs of `python -m tests.bench.fuzz`, and what the harness notices."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.paths import ROOT

INPUTS = 400
_READER = re.compile(r"^\| (\S[^|]*?) +" + r"\| ([\d,]+) +" * 4 + r"\|", re.MULTILINE)

# Readers that break, in a process of their own: it is forked.
BREAKING = """
import os, sys, tempfile, time
from pathlib import Path
from tests.bench.fuzz import __main__ as fuzz, trial
from tests.bench.fuzz.reader import Reader, single

trial.MOST_SECONDS = 3.0

def read(folder):
    what = (folder / "document").read_bytes()[:1]
    if what == b"a":
        os.abort()
    if what == b"b":
        raise KeyError("b")
    if what == b"c":
        b"x" * (600 << 20)
    if what == b"d":
        while True:
            time.process_time()
    if what == b"e":
        raise ValueError("one line\\nand another")
    if what == b"f":
        raise ValueError("a sentence")

documents = single(*(bytes([each]) for each in b"abcdefg"))
reader = Reader("breaking", lambda _: documents, read, (ValueError,))
with tempfile.TemporaryDirectory() as folder:
    found = fuzz.read_all(reader, documents, range(-7, 0), Path(folder))
for each in sorted(found.failures, key=lambda each: each.number):
    print(each.number, each.what)
print(found.inputs, found.accepted, found.refused)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.process
def test_every_reader_stands_a_few_changes() -> None:
    """Valid documents with one change, always the same ones. `make test-nightly` draws a hundred thousand."""
    done = python("-m", "tests.bench.fuzz", "--inputs", str(INPUTS), "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        name: [int(each.replace(",", "")) for each in counts]
        for name, *counts in _READER.findall(done.stdout)
    }
    assert len(rows) > 40
    inputs, accepted, refused, failed = rows.pop("all")
    assert (inputs, failed) == (sum(each[0] for each in rows.values()), 0)
    assert INPUTS - len(rows) < inputs
    assert min(accepted, refused) > INPUTS // 10, "some changes matter, and others do not"


@pytest.mark.process
def test_what_counts_as_a_failure() -> None:
    """A process that ends, an exception that is not the reader's, too much memory or time, and many words."""
    done = python("-c", BREAKING)
    assert done.stdout.splitlines()[-6:] == [
        "-7 SIGABRT", "-6 crash", "-5 large", "-4 slow", "-3 words", "7 2 2"
    ]  # fmt: skip
