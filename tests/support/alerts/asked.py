"""What promtool answers about rules and series that no server has."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from support.servers.prometheus import require

_FOUND = re.compile(r'expr: (?P<expression>".*"), time: .*\n *exp: .*\n *got: (?P<got>.*)')
_SERIES = re.compile(r"\{([^}]*)\} ([^\s,]+)")


class Sample(NamedTuple):
    """A series at one moment."""

    labels: Mapping[str, str]
    value: float


def ask(case: Mapping[str, Any], path: Path) -> list[list[Sample]]:
    """The samples of each expression of a case that expects none: promtool prints them as its reason to fail.

    The case is written to `path`.
    """
    require("promtool")
    path.write_text(json.dumps(case))
    command = ["promtool", "test", "rules", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    found = {json.loads(each["expression"]): each["got"] for each in _FOUND.finditer(done.stdout)}
    assert bool(found) == bool(done.returncode), done.stdout
    expressions = [each["expr"] for each in case["tests"][0]["promql_expr_test"]]
    assert found.keys() <= set(expressions)
    return [list(_samples(found.get(each, ""))) for each in expressions]


def _samples(got: str) -> Iterator[Sample]:
    """Series are listed as {label="value", ...} value, one behind the other."""
    for labels, value in _SERIES.findall(got):
        yield Sample(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
