"""The page itself. Its bars are SVG in the file; it has no script."""

from __future__ import annotations

from markupsafe import Markup

from rankwatch import __version__
from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.goodput.report import (
    advice_words,
    change_words,
    duration,
    ended_words,
    headline,
    moment,
    ordered_states,
    price_head,
    share,
    steps_of,
    utilisation_words,
)
from rankwatch_diagnosis.goodput.what_if import interval_advice, what_ifs
from rankwatch_diagnosis.pages.html_page import part_of, policy, style_of, template

_MOST_ATTEMPTS = 200
_PACKAGE = "rankwatch_diagnosis.goodput.page"


def goodput_page(run: RunGoodput) -> str:
    """The page about the goodput of a run."""
    style = style_of(_PACKAGE, "goodput.css")
    filters = {
        each.__name__: each
        for each in (duration, ended_words, moment, price_head, printable, share, steps_of)
    }
    attempts = run.attempts[-_MOST_ATTEMPTS:]
    first = min((each.started for each in attempts), default=0.0)
    return template(part_of(_PACKAGE, "goodput.html"), filters).render(
        policy=policy(style),
        style=Markup(style),
        version=__version__,
        run=run,
        headline=printable(headline(run)),
        facts=_facts(run),
        states=ordered_states(run),
        attempts=attempts,
        left_out=len(run.attempts) - len(attempts),
        first=first,
        length=max((each.ended - first for each in attempts), default=0.0) or 1.0,
        what_if=[advice_words(interval_advice(run)), *(change_words(each, run) for each in what_ifs(run))],
    )


def _facts(run: RunGoodput) -> dict[str, str]:
    return {
        "scheduling goodput": share(run.scheduling),
        "runtime goodput": share(run.runtime),
        "ETTR": share(run.ettr),
        "MFU": printable(utilisation_words(run)),
        "attempts": str(len(run.attempts)),
        **{printable(price_head(each)): f"{each.total:,.2f}" for each in run.costs},
    }
