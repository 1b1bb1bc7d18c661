"""The page about a verdict: what its pictures show, and that names from a training process stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.by_rank import look_by_rank
from rankwatch_diagnosis.straggler.engine import examine
from rankwatch_diagnosis.straggler.page import page
from support.diagnosis.operations import SmallJob

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"


def page_of(table: OperationTable, subject: str = "job.csv") -> str:
    examined = examine(table)
    by_rank = None if examined.case is None else look_by_rank(examined.case, examined.verdict)
    return page(examined, by_rank, subject)


def pictures(html: str) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    found: dict[str, Any] = json.loads(data)
    return found


def test_heat_map() -> None:
    """The slow rank's row is hot in its steps and nowhere else; ranks stand in the order of their stages."""
    html = page_of(SmallJob(dp=4, pp=2, steps=30).slow_rank(5, 1.3, first=12).table())
    found = pictures(html)["map"]
    assert [each["ranks"][0] for each in found["rows"]] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert [each["named"] for each in found["rows"]] == [None] * 6 + [5, None]
    values = np.array(found["values"], dtype=float)
    hot = values > 150.0
    assert hot[6, 12:].all()
    assert np.count_nonzero(hot) == 18
    assert found["limit"] == 0.25


def test_large_map() -> None:
    """Many ranks share cells, and one hot rank in one of them still shows, with its number."""
    job = SmallJob(dp=300, steps=8, microbatches=1).slow_rank(77, 1.5)
    found = pictures(page_of(job.table()))["map"]
    assert len(found["rows"]) == 150
    (row,) = (number for number, each in enumerate(found["rows"]) if each["ranks"] == [76, 77])
    assert found["rows"][row]["named"] == 77
    assert min(found["values"][row]) > 300
    assert set(found["farthest"][row]) == {77}


def test_single_long_step() -> None:
    """It is left out of the map, marked above it, and told of in words."""
    job = SmallJob(steps=40)
    job.compute[20, 3] = 100.0
    html = page_of(job.table())
    found = pictures(html)["map"]
    assert [20, 20] not in found["columns"]
    (event,) = found["events"]
    assert found["columns"][event["column"]][0] == 21
    assert "step 20 lost" in event["text"] and "late: rank 3" in html


def test_worst_step() -> None:
    """The picture has each rank's bars, the waits, and a path that leads through the slow rank."""
    html = page_of(SmallJob(dp=4, steps=12).slow_rank(2, 1.5).table())
    found = pictures(html)["path"]
    lane = [each["rank"] for each in found["lanes"]].index(2)
    critical = [each for each in found["bars"] if each[5]]
    assert {each[0] for each in critical if found["operations"][each[3]] == "backward"} == {lane}
    assert found["line"][-1][2] == pytest.approx(found["seconds"], rel=1e-5)
    assert {each[0] for each in found["waits"]} == {0, 1, 2, 3} - {lane}
    assert re.search(r"own work of rank 2</span>", html)


def test_words() -> None:
    """The verdict, its cost and its causes are in the page for those without a script."""
    html = page_of(SmallJob(dp=4, pp=2, steps=20).slow_rank(5, 1.3).table())
    assert "<h1>Rank 5 computes more slowly than its peers</h1>" in html
    assert re.search(r'<p class="cost">the run is [\d.]+% slower for it', html)
    assert '<td class="who">rank 5</td>' in html


def test_too_little() -> None:
    """A table that cannot be judged has a page that says why, without pictures."""
    table = SmallJob(dp=1, steps=6).table()
    html = page_of(table)
    assert pictures(html) == {"map": None, "path": None}
    assert "a single rank has no peer" in html


def test_hostile_names() -> None:
    """Names of operations and files cannot end the data or begin an element."""
    table = SmallJob(steps=8).slow_rank(1, 1.5).table()
    odd = replace(table, operations=tuple(f"{HOSTILE}{each}" for each in table.operations))
    html = page_of(odd, subject=HOSTILE)
    assert "<img" not in html
    assert html.count("<script") == 2
    assert any(HOSTILE in each for each in pictures(html)["path"]["operations"])


def test_policy() -> None:
    """The page allows its own style and script by their hashes and nothing else, and names no address."""
    html = page_of(SmallJob(steps=8).table())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; ")
    for name in ("style", "script"):
        (content,) = re.findall(rf"<{name}>(.*?)</{name}>", html, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert set(re.findall(r"https?://[^\"' )]*", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\bstyle=|\bon[a-z]+=", html)
