"""The table of the jobs as in production."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..result import Result, Row, limited, quantile, spread
from .judging import LEAST_PEERS, RULES, Judged, share
from .production import CHIP_SIGMAS, CYCLE

ACCEPTABLE = 0.95
FOUND = 0.95
COST_ERROR = 0.05


def production_result(judged: Sequence[Judged], seed_base: int) -> Result:
    """Rows over all jobs, then for the rules of others, by class of job and by spread of chips."""
    rows = (*_overall(judged), *_by_rules(judged), *_by_class(judged), *_by_chips(judged))
    return Result(
        title=f"Detection as in production: {len(judged)} simulated jobs, seed base {seed_base}",
        rows=rows,
        notes=(
            "A cause is acceptable if it is there and costs something, and only what is at fault is named."
            " Abstaining is, too, where all faults together cost less than 1 %, where they are no larger than"
            " what healthy chips or plans differ by, or where the table lacks what would decide.",
            "An innocent is a rank or stage without a fault; of a chip that is slow by nature the table shows"
            " by how much.",
            "The cost error is that of the slowdown of the verdict, as a share of the true excess over a run"
            " with what is at fault at the level of its peers.",
        ),
        samples={"jobs": [asdict(each) for each in judged]},
    )


def _overall(judged: Sequence[Judged]) -> Iterator[Row]:
    right = share(judged, "acceptable")
    yield Row(
        "acceptable cause",
        f"{right:.1%}",
        f"{sum(each.acceptable for each in judged)} of {len(judged)}",
        f">= {ACCEPTABLE:.0%}",
        right >= ACCEPTABLE,
    )
    innocents = [each for one in judged for each in one.innocents]
    yield limited("innocents named", len(innocents), 0, "{:.0f}".format, _in_words(judged))
    yield _found(judged)
    yield _found([each for each in judged if each.replicas >= LEAST_PEERS], ", with 3 replicas or more")
    yield from _cost(judged)
    rows = sum(each.rows for each in judged)
    yield Row(
        "engine, per million rows", f"{1e6 * sum(each.seconds for each in judged) / max(1, rows):.2f} s"
    )


def _in_words(judged: Sequence[Judged]) -> str:
    """In which jobs, and the slowest of their chips."""
    named = [each for one in judged for each in one.innocents]
    if not named:
        return ""
    jobs = ", ".join(str(each.number) for each in judged if each.innocents)
    slowest = max(each.chip_ratio for each in named)
    return f"in jobs {jobs}; the slowest chip of them {slowest - 1.0:+.1%}"


def _found(judged: Sequence[Judged], of: str = "") -> Row:
    faulty, found = sum(each.faulty_ranks for each in judged), sum(each.faulty_ranks_found for each in judged)
    part = found / faulty if faulty else 1.0
    target = "" if of else f">= {FOUND:.0%}"
    what = f"faulty ranks that cost 1 %, in causes{of}"
    return Row(what, f"{part:.1%}", f"{found} of {faulty}", target, None if of else part >= FOUND)


def _cost(judged: Sequence[Judged]) -> Iterator[Row]:
    errors = [each.cost_error for each in judged if each.cost_error is not None]
    if errors:
        within = sum(each <= COST_ERROR for each in errors) / len(errors)
        text = f"median {spread(errors).median:.1%}, within 5 %: {within:.1%} of {len(errors)}"
        yield limited("cost error, 95 % of jobs", quantile(errors, 0.95), COST_ERROR, "{:.1%}".format, text)


def _by_rules(judged: Sequence[Judged]) -> Iterator[Row]:
    guilty = [{rank for each in one.truth["causes"] for rank in each["ranks"]} for one in judged]
    for name in RULES:
        named = [set(one.named_by_rules[name]) for one in judged]
        struck = [
            pair
            for pair, one in zip(zip(named, guilty, strict=True), judged, strict=True)
            if one.faulty_ranks
        ]
        healthy = [ranks for ranks, faulty in zip(named, guilty, strict=True) if not faulty]
        right, said, true = (
            sum(map(len, ranks))
            for ranks in ([a & b for a, b in struck], [a for a, _ in struck], [b for _, b in struck])
        )
        yield Row(
            f"rule of others: {name}",
            f"precision {right / max(1, said):.0%}, recall {right / max(1, true):.0%}",
            f"names a rank in {sum(map(bool, healthy))} of {len(healthy)} jobs without a rank at fault",
        )


def _by_class(judged: Sequence[Judged]) -> Iterator[Row]:
    for label in dict.fromkeys(CYCLE):
        yield from _part(f"class: {label}", [each for each in judged if each.label == label])


def _by_chips(judged: Sequence[Judged]) -> Iterator[Row]:
    for sigma in CHIP_SIGMAS:
        yield from _part(
            f"chips differ by {sigma:.1%}", [each for each in judged if each.chip_sigma == sigma]
        )


def _part(what: str, part: Sequence[Judged]) -> Iterator[Row]:
    if not part:
        return
    faulty, found, innocents = (
        sum(count)
        for count in (
            [each.faulty_ranks for each in part],
            [each.faulty_ranks_found for each in part],
            [len(each.innocents) for each in part],
        )
    )
    errors = [each.cost_error for each in part if each.cost_error is not None]
    texts = [
        f"{len(part)} jobs",
        *([f"{found} of {faulty} ranks"] if faulty else []),
        *([f"{innocents} innocents"] if innocents else []),
        *([f"cost error {spread(errors).median:.1%}"] if errors else []),
        f"abstained in {sum(each.abstained for each in part)}",
    ]
    yield Row(what, f"{share(part, 'acceptable'):.1%}", ", ".join(texts))


def one_line(each: Judged) -> str:
    """What is true of a job, what was said of it, and what of that is wrong."""
    truth = " + ".join(map(_cause, each.truth["causes"])) or "healthy"
    said = " ".join([each.cause, *map(str, each.named), f"{each.slowdown:.3f}"])
    wrong = [
        *(["WRONG"] if not each.acceptable else []),
        *(f"INNOCENT {one.name}" for one in each.innocents),
        *(["MISSED RANK"] if each.faulty_ranks_found < each.faulty_ranks else []),
        *([f"COST {each.cost_error:.0%}"] if (each.cost_error or 0.0) > COST_ERROR else []),
    ]
    return (
        f"{each.number:>4} {each.label}, {each.replicas} replicas, chips {each.chip_sigma:.1%}:"
        f" {truth}; said {said}  {', '.join(wrong)}"
    )


def _cause(cause: Mapping[str, Any]) -> str:
    who = [*map(str, cause["ranks"]), *(f"stage {stage}" for stage in cause["stages"])]
    phase = f" ({cause['phase']})" if cause["phase"] else ""
    part = f" in {cause['share_of_steps']:.0%} of steps" if cause["share_of_steps"] < 1.0 else ""
    return " ".join([f"{cause['cause']}{phase}", *who, f"{cause['slowdown']:.3f}{part}"])
