"""`python -m tests.bench.mutations`: changes one token of the product at a time, and counts which changes the
tests notice.

The changes are drawn at random from all packages: each package has at least four, the others fall where the
code is. A change is caught if a test fails that passes without it. The tests that import the changed module
are asked first, then those of its folder, last all that `make test` runs, once for all survivors together:
what fails then is asked again about each of them.

It changes the files of the checkout in which it runs and restores them, so run it in a clone of its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path

TESTS_OF = {
    "instrumentation/rankwatch": "tests/instrumentation",
    "agent/rankwatch_agent": "tests/agent",
    "diagnosis/rankwatch_diagnosis": "tests/diagnosis",
    "cli/rankwatch_cli": "tests/cli",
    "alerts/rankwatch_alerts": "tests/alerts",
    "dashboards/rankwatch_dashboards": "tests/dashboards",
    "reference_trainer/rankwatch_trainer": "tests/trainer",
}
LEAST_OF_A_PACKAGE = 4
SELECTED = "not nightly and not frameworks"
"""What `make test` runs."""
_SECONDS = 3600
_AT_ONCE = ("-n", "2", "--dist", "loadfile")
_NONE_FAILS = (0, 5)
"""Statuses of pytest: all pass; none is selected."""
_USAGE, _UNKNOWN = 4, "not found: "
"""The status, and what it says, where another checkout has no such test."""
_SWAPPED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.And: "or",
    ast.Or: "and",
}
_OPERATOR = re.compile(r"(\)*\s*)(not in|is not|in|is|and|or|[<>=!]=?|[-+*/])(\s*\(*)")
_IN_PROMQL = (
    ("unless on", "and on"),
    (" > ", " < "),
    (" < ", " > "),
    ("max by", "min by"),
    ("sum by", "max by"),
)


@dataclass(frozen=True)
class Mutation:
    """Characters of a file, and what takes their place."""

    path: str
    first: int
    last: int
    old: str
    new: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old!r} -> {self.new!r}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The file is changed until the block ends. Only one change of a file may be applied at once."""
        file = Path(self.path)
        text = file.read_text()
        _write(file, text[: self.first] + self.new + text[self.last :])
        try:
            yield
        finally:
            _write(file, text)


def _write(file: Path, text: str) -> None:
    """Forget the bytecode too: Python takes it for current where the size and the second are the same."""
    file.write_text(text)
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


def mutations_of(path: Path) -> list[Mutation]:
    """All changes of one file: operators, numbers, conditions, results, statements, PromQL."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def offset(line: int, column: int) -> int:
        """Columns of ast count bytes."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def replaced(first: int, last: int, new: str, line: int) -> Mutation:
        return Mutation(str(path), first, last, text[first:last], new, line)

    def whole(node: ast.expr | ast.stmt, new: str) -> Mutation:
        first = offset(node.lineno, node.col_offset)
        last = offset(node.end_lineno or 0, node.end_col_offset or 0)
        return replaced(first, last, new, node.lineno)

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutation]:
        first = offset(left.end_lineno or 0, left.end_col_offset or 0)
        last = offset(right.lineno, right.col_offset)
        found = _OPERATOR.fullmatch(text[first:last])
        if found and type(operator) in _SWAPPED:
            first, last = first + found.start(2), first + found.end(2)
            yield replaced(first, last, _SWAPPED[type(operator)], left.lineno)

    found: list[Mutation] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(ops=[operator]):
                found += between(node.left, node.comparators[0], operator)
            case ast.BinOp():
                found += between(node.left, node.right, node.op)
            case ast.BoolOp():
                found += between(node.values[0], node.values[1], node.op)
            case ast.Constant(value=bool(value)):
                found.append(whole(node, str(not value)))
            case ast.Constant(value=int(value)):
                found.append(whole(node, repr(value + 1)))
            case ast.Constant(value=float(value)):
                found.append(whole(node, repr(2 * value or 1.0)))
            case ast.If(test=test) | ast.IfExp(test=test):
                found.append(whole(test, f"(not ({ast.get_source_segment(text, test)}))"))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                found.append(whole(value, "None"))
            case ast.Expr(value=ast.Call()):
                found.append(whole(node, "pass"))
            case ast.Constant(value=str(value)) | ast.JoinedStr(values=[ast.Constant(value=str(value)), *_]):
                found += _in_promql(whole(node, ""), value)
    return found


def _in_promql(string: Mutation, value: str) -> Iterator[Mutation]:
    """The first operator in an expression of PromQL."""
    if "rankwatch" not in value or "alerts/" not in string.path:
        return
    for old, new in _IN_PROMQL:
        at = string.old.find(old)
        if at >= 0:
            first = string.first + at
            yield Mutation(string.path, first, first + len(old), old, new, string.line)
            return


def drawn(count: int, seed: int) -> list[Mutation]:
    """Changes of all packages, no two of them in one file."""
    draw = random.Random(seed)
    of_packages = [
        [change for path in sorted(Path(package).rglob("*.py")) for change in mutations_of(path)]
        for package in TESTS_OF
    ]
    chosen: dict[str, Mutation] = {}

    def take(changes: Sequence[Mutation], wanted: int) -> None:
        while wanted:
            change = draw.choice(changes)
            if change.path not in chosen:
                chosen[change.path] = change
                wanted -= 1

    for changes in of_packages:
        take(changes, LEAST_OF_A_PACKAGE)
    take([each for changes in of_packages for each in changes], count - len(chosen))
    return list(chosen.values())


def first_failure(selection: Sequence[str]) -> str:
    """The first test of these that fails; empty if all pass, or if there are none."""
    return next(iter(failures([*selection, "-x"])), "") if selection else ""


def failures(selection: Sequence[str]) -> list[str]:
    """Tests of these that fail. A run that ends early or hangs counts as one."""
    command = [sys.executable, "-m", "pytest", "-m", SELECTED, *_AT_ONCE, *selection]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ["(hangs)"]
    found = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    unknown = done.returncode == _USAGE and _UNKNOWN in done.stdout + done.stderr
    none = unknown or done.returncode in _NONE_FAILS
    return found or ([] if none else ["(does not start)"])


def noticed(change: Mutation, selection: Sequence[str]) -> str:
    """The first test of these that fails with the change, and passes without it."""
    with change.applied():
        test = first_failure(selection)
    return "" if test.startswith("tests/") and first_failure([test]) else test


def importers(path: str) -> list[str]:
    """Test files that import the module."""
    module = path.split("/", 1)[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    wanted = re.compile(rf"from {re.escape(module)} import|from {re.escape(package)} import .*\b{name}\b")
    return sorted(str(each) for each in Path("tests").rglob("test_*.py") if wanted.search(each.read_text()))


def folder_of_tests(path: str) -> str:
    """The folder of tests that mirrors that of the module."""
    package = next(each for each in TESTS_OF if path.startswith(each))
    folder = Path(TESTS_OF[package]) / Path(path).relative_to(package).parent
    while not folder.is_dir():
        folder = folder.parent
    return str(folder)


def near(change: Mutation, expected: str) -> str:
    """The test that notices: the expected one, one that imports the module, or one of its folder."""
    selections = ([expected] if expected else [], importers(change.path), [folder_of_tests(change.path)])
    return next(filter(None, (noticed(change, each) for each in selections)), "")


def far(survivors: Sequence[Mutation]) -> dict[str, str]:
    """Change -> the test that notices, of all tests."""
    with _all_applied(survivors):
        failed = failures(["tests"]) if survivors else []
    caught = {str(change): noticed(change, failed) for change in survivors}
    return {change: test for change, test in caught.items() if test}


@contextmanager
def _all_applied(changes: Sequence[Mutation]) -> Iterator[None]:
    if not changes:
        yield
        return
    with changes[0].applied(), _all_applied(changes[1:]):
        yield


def _read(output: Path) -> dict[Mutation, str]:
    """Changes of an earlier output, and the test that noticed."""
    rows = json.loads(output.read_text())
    return {
        Mutation(**{name: row[name] for name in Mutation.__dataclass_fields__}): row.get("caught_by", "")
        for row in rows
    }


def main() -> None:
    """Print a line for each change, and the share that is caught."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="only print the changes, and write them")
    parser.add_argument("--near", action="store_true", help="ask no tests of other folders")
    parser.add_argument("--output", type=Path, default=Path("bench-results/mutations.json"))
    parser.add_argument("--again", type=Path, help="the changes of this earlier output, to compare tests")
    given = parser.parse_args()
    earlier = _read(given.again) if given.again else {}
    changes = list(earlier) or drawn(given.count, given.seed)
    if given.list:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps([asdict(each) for each in changes], indent=1))
        print(*changes, sep="\n")
        return
    caught: dict[str, str] = {}
    for change in changes:
        if test := near(change, earlier.get(change, "")):
            caught[str(change)] = test
        print(f"{change}: {test or 'survives so far'}", flush=True)
    if not given.near:
        caught |= far([each for each in changes if str(each) not in caught])
    given.output.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(each), "caught_by": caught.get(str(each), "")} for each in changes]
    given.output.write_text(json.dumps(rows, indent=1))
    for change in changes:
        if str(change) not in caught:
            print(f"survives: {change}")
    print(f"{len(caught)} of {len(changes)} caught")


if __name__ == "__main__":
    main()
