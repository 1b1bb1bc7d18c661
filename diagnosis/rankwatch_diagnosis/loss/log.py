"""Rows from the lines of a trainer's log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.row import COLUMNS, Intake, Row, to_step, to_value

Extract = Callable[[str], dict[str, str]]
"""From a line to the texts found, by name of ours; empty where the line is no report of a step."""

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)(?!\w|\.\d)"
_TO = r"""["'\]]?\s*(?:[:=#|]\s*)?(?:["'\[(]\s*)?(?:tensor\()?"""
"""What stands between a name and its number: `loss 3.4`, `loss: 3.4`, `"loss": 3.4`, `step [12/100]`.
No two parts of a pattern here may match the same text, or a line of blanks would take minutes."""
_STEP = re.compile(
    rf"(?:(?<![\w/])|(?<=train/))(?:global[ _]?step|iteration|iter|step)\b{_TO}(\d+)\b", re.IGNORECASE
)
_LOSS = re.compile(rf"(?<!\w)(?:([a-z]+)[ _/-])?loss\b{_TO}({_NUMBER})", re.IGNORECASE)
_OTHERS = {
    "grad_norm": re.compile(rf"(?<![a-z])grad(?:ient)?[ _-]?norm\b{_TO}({_NUMBER})", re.IGNORECASE),
    "update_norm": re.compile(rf"(?<![a-z])updates?[ _-]?norm\b{_TO}({_NUMBER})", re.IGNORECASE),
    "loss_scale": re.compile(rf"(?<![a-z])loss[ _-]?scale\b{_TO}({_NUMBER})", re.IGNORECASE),
}
_OTHER_LOSSES = frozenset(
    (
        *("val", "valid", "validation", "eval", "evaluation", "test", "dev", "out", "heldout"),
        *("aux", "auxiliary", "z", "mtp", "balancing", "balance"),
    )
)
"""What stands before `loss` where it is not the loss of training."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def default_extract(line: str) -> dict[str, str]:
    """What is found in any order, as `step 12 ... loss 3.4` or `iteration 12/ 500 | lm loss: 2.3E+00`."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    step = _STEP.search(line)
    if step is None:
        return {}
    found = {name: match[1] for name, pattern in _OTHERS.items() if (match := pattern.search(line))}
    for match in _LOSS.finditer(line):
        if (match[1] or "").lower() not in _OTHER_LOSSES:
            found["loss"] = match[2]
            break
    return {"step": step[1], **found} if found else {}


def extract_by(pattern: str) -> Extract:
    """What a regular expression with named groups finds; raises UserError where it cannot serve."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--pattern is no regular expression: {error}") from error
    missing = [name for name in ("step", "loss") if name not in compiled.groupindex]
    if missing:
        raise UserError(
            f"--pattern has no group (?P<{missing[0]}>...); it needs step and loss, "
            f"and may have {', '.join(COLUMNS[1:])}"
        )
    wanted = [name for name in ("step", *COLUMNS) if name in compiled.groupindex]

    def extract(line: str) -> dict[str, str]:
        match = compiled.search(line)
        return {name: match[name] or "" for name in wanted} if match else {}

    return extract


def read_log(lines: Iterable[str], intake: Intake, *, extract: Extract) -> Iterator[Row]:
    """Yield the rows; lines that report no step pass by, those with text for a number are counted."""
    for line in lines:
        found = extract(line)
        if not found:
            continue
        try:
            step = to_step(found.pop("step"))
            yield Row(step, **{name: to_value(text) for name, text in found.items()})
        except ValueError:
            intake.skipped += 1
