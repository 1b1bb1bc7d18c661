"""The two forms of a report: what comes from a run stays text in both."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch.conventions.states import GoodputState
from rankwatch_diagnosis.goodput.model import AttemptGoodput, Cost, RunGoodput
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.review.markdown import markdown
from rankwatch_diagnosis.review.model import (
    MOST_EVENTS,
    MOST_POINTS,
    QUESTIONS,
    CheckpointSeen,
    Event,
    EventKind,
    Judgement,
    LossCurve,
    LossMark,
    RankPhases,
    RunReview,
    shown_events,
    thinned,
)
from rankwatch_diagnosis.review.page import review_page
from support.browser import CHROMIUM, visit

HOSTILE = (
    "</title></svg><script>document.title='owned'</script>| a | `b` _c_ [d](http://e) &lt; \x1b[31m\n# f"
)
EVENTS = tuple(
    Event(100.0 + 10.0 * at, kind, severity, HOSTILE, HOSTILE, rank=at, node=HOSTILE, until=until)
    for at, (kind, severity, until) in enumerate(
        (kind, severity, until) for kind in EventKind for severity in Severity for until in (None, 400.0)
    )
)
REVIEW = RunReview(
    run=HOSTILE,
    source=HOSTILE,
    result=HOSTILE,
    severity=Severity.CRITICAL,
    why=HOSTILE,
    running=False,
    started=100.0,
    ended=700.0,
    world_size=3,
    nodes=(HOSTILE,) * 6,
    steps=HOSTILE,
    goodput=RunGoodput(
        run=HOSTILE,
        source=HOSTILE,
        seconds={GoodputState.PRODUCTIVE: 7200.0, GoodputState.STALL: 3600.0},
        attempts=(AttemptGoodput(number=0, started=100.0, ended=700.0, world_size=3),),
        costs=(Cost(currency="EUR", basis="list", by_state={GoodputState.STALL: 2.0}),),
    ),
    events=EVENTS,
    events_left_out=3,
    judgements=(Judgement(HOSTILE, Severity.WARNING, HOSTILE, (HOSTILE,)),),
    phases=tuple(RankPhases(rank, HOSTILE, {"forward": 1.0, HOSTILE: 3.0}) for rank in range(3)),
    loss=LossCurve(
        rank=0,
        axis="step",
        points=((0.0, 5.0), (1.0, 4.0), (2.0, math.nan), (3.0, 900.0)),
        marks=(LossMark(3.0, HOSTILE, Severity.CRITICAL),),
    ),
    checkpoints=(
        CheckpointSeen(
            ended=200.0,
            operation=HOSTILE,
            step=7,
            ranks=3,
            failed=1,
            seconds=2.0,
            blocking_seconds=1.0,
            slowest_rank=2,
            path=HOSTILE,
        ),
    ),
    checkpoint_summary=HOSTILE,
    unseen=(HOSTILE,),
)
NOTHING = RunReview(
    run="r",
    source="s",
    result="ended",
    severity=Severity.INFO,
    why="nothing is known",
    running=False,
    started=None,
    ended=None,
    world_size=0,
)


def test_markdown_keeps_its_structure() -> None:
    """No name begins a heading, a cell, a link or a tag of its own."""
    text = markdown(REVIEW)
    assert "\x1b" not in text
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 1 + 7 + len(QUESTIONS)
    for line in text.splitlines():
        bare = re.sub(r"\\.", "", line)
        assert not set("<>[]`") & set(bare), line
        if line.startswith("| 1970"):
            assert bare.count("|") in (6, 7), line


def test_markdown_says_what_was_lost() -> None:
    """GPU-hours and money by state, and questions that stay open."""
    text = markdown(REVIEW)
    assert "| stall | 1 | 33.3% | 2.00 EUR |" in text
    assert "| all that was lost | 1 | 33.3% | 2.00 EUR |" in text
    assert text.rstrip().endswith(QUESTIONS[-1])
    assert "3 events of less weight are left out" in text


@pytest.mark.parametrize("form", [markdown, review_page])
def test_nothing_known(form: object) -> None:
    """A run of which nothing is known has a report, too."""
    assert callable(form)
    assert "not known" in form(NOTHING)
    assert "not known" in form(replace(NOTHING, running=True))


def test_most_severe_events_are_kept() -> None:
    """In the order of time."""
    many = [Event(float(at), EventKind.STALL, Severity.INFO, "t", "s") for at in range(MOST_EVENTS + 9)]
    alert = Event(3.5, EventKind.ALERT, Severity.CRITICAL, "alert", "s")
    shown, left_out = shown_events([*many, alert])
    assert left_out == 10
    assert [each.at for each in shown] == sorted(each.at for each in shown)
    assert "alert" in [each.text for each in shown]


def test_thinned_curve_keeps_extremes() -> None:
    """A single spike and a single NaN of a million steps are still there."""
    points = [(float(at), 1.0) for at in range(1_000_000)]
    points[123_456] = (123_456.0, 50.0)
    points[654_321] = (654_321.0, math.nan)
    found = thinned(points)
    assert len(found) <= MOST_POINTS * 4 / 3
    assert (123_456.0, 50.0) in found
    assert any(math.isnan(value) for _, value in found)


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 420])
def test_page_in_a_browser(width: int, tmp_path: Path) -> None:
    """Names stay text, every event has its mark, nothing is wider than the window, nobody complains."""
    page = review_page(REVIEW)
    assert "<script" not in page
    page = page.replace("default-src 'none'", "default-src 'none'; script-src ", 1)
    seen = visit(
        page,
        "const root = document.documentElement; return {"
        "title: document.title, scripts: document.scripts.length,"
        "marks: document.querySelectorAll('figure .mark').length,"
        "lines: document.querySelectorAll('polyline.loss').length,"
        "overflow: root.scrollWidth - root.clientWidth}",
        tmp_path,
        width=width,
    )
    assert seen.complaints == []
    assert "script" in seen.answer["title"]
    assert seen.answer["scripts"] == 1  # the probe itself
    assert seen.answer["marks"] == len(EVENTS) + 1  # and the loss that is NaN
    assert seen.answer["lines"] == 1
    assert seen.answer["overflow"] <= 0
