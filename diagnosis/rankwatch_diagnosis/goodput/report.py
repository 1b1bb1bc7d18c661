"""The goodput of a run for people, as lines of text and as a page, and for programs, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rankwatch.conventions.states import GoodputState
from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.goodput.model import (
    AttemptGoodput,
    Cost,
    IntervalAdvice,
    RunGoodput,
    WhatIf,
    interval_advice,
    what_ifs,
)
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.words import duration, moment, share

WORDS = {"straggler_removed": "no straggler", "restarts_halved": "half as many restarts"}
_MOST_ATTEMPTS = 20
_GAIN_WORTH_IT = 0.01


def lines(run: RunGoodput) -> list[str]:
    """Return the ledger, the attempts, what would be better, and what could not be seen."""
    ratios = {"scheduling": run.scheduling, "runtime": run.runtime, "ETTR": run.ettr}
    shown = [f"{name} {share(value)}" for name, value in ratios.items()]
    found = [
        headline(run),
        "  " + "   ".join((*shown, f"MFU {utilisation_words(run)}")),
        "",
        *_ledger(run),
        "",
        *_timeline(run),
        "",
        "  what if",
        f"    {advice_words(interval_advice(run))}",
        *(f"    {change_words(each, run)}" for each in what_ifs(run)),
    ]
    if run.unseen:
        found += ["", "  not seen", *(f"    {each}" for each in run.unseen)]
    return [printable(each) for each in found]


def _ledger(run: RunGoodput) -> Iterator[str]:
    prices = "".join(f"{price_head(each):>18}" for each in run.costs)
    yield f"  {'state':<14}{'rank time':>12}{'share':>9}{prices}"
    for state in ordered_states(run):
        part = run[state] / run.requested if run.requested else None
        costs = "".join(f"{each.by_state.get(state, 0.0):>18,.2f}" for each in run.costs)
        yield f"  {state:<14}{duration(run[state]):>12}{share(part):>9}{costs}"
    totals = "".join(f"{each.total:>18,.2f}" for each in run.costs)
    yield f"  {'sum':<14}{duration(run.requested):>12}{share(1.0 if run.requested else None):>9}{totals}"
    if not run.costs:
        yield "  no price is known, so there is no cost"


def _timeline(run: RunGoodput) -> Iterator[str]:
    if not run.attempts:
        yield "  no attempts are known"
        return
    yield f"  {'attempt':<9}{'started':<21}{'lasted':>10}{'ranks':>8}  {'steps':<16}ended"
    shown = run.attempts[-_MOST_ATTEMPTS:]
    if len(shown) < len(run.attempts):
        yield f"  ({len(run.attempts) - len(shown)} earlier attempts)"
    for each in shown:
        lasted, size = duration(each.ended - each.started), each.world_size or "?"
        yield (
            f"  {each.number:<9}{moment(each.started):<21}{lasted:>10}{size:>8}  "
            f"{steps_of(each):<16}{ended_words(each)}"
        )


def headline(run: RunGoodput) -> str:
    """Return the result in one sentence."""
    spent = duration(run.requested)
    return f"run {run.run}: {share(run.ettr)} of {spent} of rank time made progress that lasts"


def ordered_states(run: RunGoodput) -> list[GoodputState]:
    """Return the states with any time: productive first, then by what they took."""
    found = [each for each in GoodputState if run[each] > 0.0]
    return sorted(found, key=lambda each: (each is not GoodputState.PRODUCTIVE, -run[each]))


def advice_words(advice: IntervalAdvice | str) -> str:
    """Return the advice as a sentence."""
    if isinstance(advice, str):
        return f"checkpoint interval: {advice}"
    if advice.gain < _GAIN_WORTH_IT:
        return (
            f"checkpoints every {duration(advice.present_seconds)}: good as it is (best "
            f"{duration(advice.best_seconds)}, worth {share(advice.gain)} more); {_basis_of(advice)}"
        )
    return (
        f"checkpoints every {duration(advice.best_seconds)} instead of {duration(advice.present_seconds)}: "
        f"worth {share(advice.gain)} of the time; {_basis_of(advice)}"
    )


def _basis_of(advice: IntervalAdvice) -> str:
    between = [advice.failure_interval_seconds, advice.failure_interval_low, advice.failure_interval_high]
    mean, fewest, most = map(duration, between)
    low, high = duration(advice.low_seconds), duration(advice.high_seconds)
    return (
        f"a save blocks for {duration(advice.blocking_seconds)}, {advice.interruptions} interruptions, "
        f"one in {mean} (90 % between {fewest} and {most}: best {low} to {high})"
    )


def change_words(change: WhatIf, run: RunGoodput) -> str:
    """Return what a change would be worth, with the money where a price is known."""
    money = "".join(
        f", {each.total * change.rank_seconds / run.requested:,.2f} {each.currency} ({each.basis})"
        for each in run.costs
    )
    return (
        f"{WORDS[change.change]}: {share(change.ettr)} instead of {share(run.ettr)}, saves "
        f"{duration(change.rank_seconds)} of rank time{money}"
    )


def as_json(run: RunGoodput) -> dict[str, object]:
    """Return the goodput with all of its parts, for programs. Ratios and what is not known are null."""
    advice = interval_advice(run)
    parts: dict[str, object] = {
        "run": run.run,
        "source": run.source,
        "rank_seconds": {state.value: run[state] for state in GoodputState},
        "goodput": {
            "scheduling": run.scheduling,
            "runtime": run.runtime,
            "ettr": run.ettr,
            "flops_utilisation": run.flops_utilisation or None,
        },
        "costs": [
            {name: getattr(each, name) for name in ("currency", "basis", "total", "by_state")}
            for each in run.costs
        ],
        "attempts": [asdict(each) for each in run.attempts],
        "saves": None if run.saves is None else asdict(run.saves),
        "checkpoint_interval": {"reason": advice} if isinstance(advice, str) else asdict(advice),
        "what_if": [asdict(each) for each in what_ifs(run)],
        "not_seen": list(run.unseen),
    }
    return {name: json_value(value) for name, value in parts.items()}


def utilisation_words(run: RunGoodput) -> str:
    """Return the utilisation against the peak of each type of numbers; `unknown` without any."""
    parts = [f"{share(ratio)} of {dtype}" for dtype, ratio in sorted(run.flops_utilisation.items())]
    return ", ".join(parts) or share(None)


def price_head(cost: Cost) -> str:
    """Name currency and basis of a column of money."""
    return f"{cost.currency} ({cost.basis})"


def steps_of(attempt: AttemptGoodput) -> str:
    """Return the steps of an attempt."""
    if attempt.last_step is None:
        return "-"
    return f"{'?' if attempt.first_step is None else attempt.first_step} to {attempt.last_step}"


def ended_words(attempt: AttemptGoodput) -> str:
    """Say how an attempt ended."""
    return "runs" if attempt.running else attempt.ended_how or "not known"


_MOST_ATTEMPTS_ON_PAGE = 200


def goodput_page(run: RunGoodput) -> str:
    """Return the page about the goodput of a run. Its bars are SVG in the file; it has no script."""
    from rankwatch_diagnosis.pages.html_page import page  # only here: it needs jinja2

    filters = (duration, ended_words, moment, price_head, share, steps_of)
    attempts = run.attempts[-_MOST_ATTEMPTS_ON_PAGE:]
    first = min((each.started for each in attempts), default=0.0)
    return page(
        "goodput",
        {each.__name__: each for each in filters},
        source=run.source,
        run=run,
        headline=printable(headline(run)),
        facts={
            "scheduling goodput": share(run.scheduling),
            "runtime goodput": share(run.runtime),
            "ETTR": share(run.ettr),
            "MFU": printable(utilisation_words(run)),
            "attempts": str(len(run.attempts)),
            **{printable(price_head(each)): f"{each.total:,.2f}" for each in run.costs},
        },
        states=ordered_states(run),
        attempts=attempts,
        left_out=len(run.attempts) - len(attempts),
        first=first,
        length=max((each.ended - first for each in attempts), default=0.0) or 1.0,
        what_if=[advice_words(interval_advice(run)), *(change_words(each, run) for each in what_ifs(run))],
    )
