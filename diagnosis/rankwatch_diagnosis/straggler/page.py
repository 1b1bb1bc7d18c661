"""The page itself: words and tables from a template, and the pictures as data for the script in it.

Names come from a training process. The template escapes every text, and the script puts text in as text. The
policy of the page allows its own style and its own script, by their hashes, and nothing from anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from markupsafe import Markup

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.pages import html_page
from rankwatch_diagnosis.straggler.by_rank import ByRank, RankRow
from rankwatch_diagnosis.straggler.engine import Examination
from rankwatch_diagnosis.straggler.pictures import WorstStep, event_words, heat_map, worst_step
from rankwatch_diagnosis.straggler.report import (
    cost_sentence,
    doubts,
    fixed_line,
    rank_seconds,
    reasons,
    sentence,
    who,
    whom,
)
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict

_MOST_RANKS = 24
_MOST_CAUSES = 24
_MOST_SHARES = 6
_PARTS: Mapping[str, tuple[str, str]] = {
    "compute": ("compute_seconds", "compute"),
    "data_loading": ("data_loading_seconds", "data loading"),
    "other": ("other_seconds", "other host work"),
    "communication": ("transfer_seconds", "transfers"),
    "wait": ("wait_seconds", "waits and pauses"),
}
"""Parts of a rank's step: colour -> field of its row, and name."""


def page(examined: Examination, by_rank: ByRank | None, subject: str) -> str:
    """Return the page on a verdict; `subject` names the table or run. Without ranks it has no pictures."""
    verdict, case = examined
    worst: WorstStep | None = None
    pictures: dict[str, object] = {"map": None, "path": None}
    if case is not None and by_rank is not None:
        worst = worst_step(case, by_rank)
        pictures = {"map": heat_map(case, by_rank, verdict), "path": worst.picture}
    filters: dict[str, Callable[..., object]] = {
        "duration": _duration,
        "signed": _signed,
        "percent": _percent,
    }
    return html_page.page(
        "straggler",
        filters,
        script="straggler.js",
        data=_embedded(pictures),
        subject=printable(subject),
        headline=_headline(verdict),
        cost=cost_sentence(verdict),
        if_all_fixed=fixed_line(verdict),
        facts=_facts(verdict),
        causes=[_cause(each, verdict) for each in verdict.causes[:_MOST_CAUSES]],
        causes_left_out=max(0, len(verdict.causes) - _MOST_CAUSES),
        worst=worst,
        shares=[] if worst is None else worst.shares[:_MOST_SHARES],
        **_ranks(by_rank),
        unjudged=[*_unjudged(verdict, by_rank)],
    )


def _embedded(value: object) -> Markup:
    """Write JSON inside of a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _headline(verdict: Verdict) -> str:
    said = sentence(verdict)
    if verdict.ranks or verdict.stages:
        said = f"{whom(verdict)}{' ' if verdict.ranks else ': '}{said}"
    return said[:1].upper() + said[1:]


def _facts(verdict: Verdict) -> dict[str, str]:
    """Map name to value, of what is known."""
    facts = verdict.evidence
    shown = {
        "verdict": verdict.cause_and_phase,
        "steps": _whole(facts.get("steps")),
        "ranks": _whole(facts.get("ranks")),
        "operations": _whole(facts.get("operations")),
        "median step": _duration(facts.get("step_seconds")),
    }
    return {name: value for name, value in shown.items() if value}


def _cause(cause: FoundCause, verdict: Verdict) -> dict[str, object]:
    most = max((each.slowdown or 1.0) - 1.0 for each in verdict.causes)
    lost = cause.lost_rank_seconds
    return {
        "who": who(cause),
        "what": cause.cause_and_phase,
        "certain": cause.certain,
        "first_step": cause.first_step,
        "last_step": cause.last_step,
        "share_of_steps": cause.share_of_steps,
        "slowdown": cause.slowdown,
        "part_of_most": 0.0 if most <= 0.0 else ((cause.slowdown or 1.0) - 1.0) / most,
        "lost": "" if lost is None else rank_seconds(lost),
    }


def _ranks(by_rank: ByRank | None) -> dict[str, object]:
    """Return the rows at both ends, how many are between them, and the parts of a step that any rank has."""
    rows: Sequence[RankRow] = () if by_rank is None else by_rank.rows
    bottom = _MOST_RANKS // 4 if len(rows) > _MOST_RANKS else 0
    parts = {
        kind: (field, name)
        for kind, (field, name) in _PARTS.items()
        if any(getattr(each, field) > 0.0 for each in rows)
    }
    return {
        "step_seconds": 0.0 if by_rank is None else by_rank.step_seconds,
        "top": rows[: _MOST_RANKS - bottom],
        "bottom": rows[len(rows) - bottom :],
        "ranks_between": max(0, len(rows) - _MOST_RANKS),
        "parts": parts,
    }


def _unjudged(verdict: Verdict, by_rank: ByRank | None) -> Iterator[str]:
    for each in verdict.causes[:_MOST_CAUSES]:
        if not each.certain:
            yield from (f"{each.cause.value}: {line}" for line in doubts(each))
    yield from reasons(verdict)
    compared = {each.compared_with for each in by_rank.rows} if by_rank is not None else set()
    if "one peer" in compared:
        yield "Stages of two ranks: each is the other's only peer, and neither can be called the odd one."
    if "its own past" in compared:
        yield "Stages of one rank: it has no peer, so only what begins or ends in the table is seen."
    if verdict.events:
        lost = f"{verdict.event_seconds:,.3g} s"
        yield f"Single long steps lost {lost}. They are no trend, so everything above leaves them out:"
        yield from (event_words(each) for each in verdict.events)


def _whole(number: object) -> str:
    return f"{number:,}" if isinstance(number, int) else ""


def _percent(ratio: float | None) -> str:
    """Say how much slower a slowdown is, in percent."""
    return "" if ratio is None or math.isnan(ratio) else f"{ratio - 1.0:.1%}"


def _signed(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:+.1%}".replace("-", "\N{MINUS SIGN}")


def _duration(seconds: object) -> str:
    if not isinstance(seconds, float):
        return ""
    return f"{seconds:.4g} s" if seconds >= 1.0 else f"{1e3 * seconds:.1f} ms"
