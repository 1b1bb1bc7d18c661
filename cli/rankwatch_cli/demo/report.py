"""What the demo prints at its end."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict

from rankwatch_cli.demo.scenario import Outcome

_FIRST = ("alertname", "severity", "run", "rank", "node", "cause", "slowdown", "runbook_url")
"""What somebody who was woken reads first."""


def report(outcome: Outcome) -> str:
    """The verdict, in lines for a person."""
    if outcome.injected_rank is None:
        count = len(outcome.false_alarms)
        return "healthy run: no alert" if not count else f"healthy run: {count} false alarm(s)"
    lines: list[str] = []
    if outcome.alert is not None:
        lines += ["", "The alert as Alertmanager delivered it:"]
        shown = {**outcome.alert.labels, **outcome.alert.annotations}
        first = [name for name in _FIRST if name in shown]
        for name in [*first, *sorted(shown.keys() - set(first))]:
            lines += textwrap.wrap(f"  {name:<13} {shown[name]}", 110, subsequent_indent=" " * 16)
    elif outcome.suspect is not None:
        found = outcome.suspect
        lines += [
            "",
            "The straggler, from the agent's own figures (no Prometheus, no alert):",
            f"  rank          {found.rank}",
            f"  node          {found.node}",
            f"  grown phase   {found.phase}",
            f"  residual      {found.residual:.0%} above its peers",
            f"  slowdown      {found.slowdown:.2f} times",
        ]
    lines += ["", _verdict(outcome)]
    return "\n".join(lines)


def _verdict(outcome: Outcome) -> str:
    injected = outcome.injected_rank
    if outcome.named_rank is None:
        return f"MISSED: rank {injected} was slowed down and nobody was named in time"
    if outcome.named_rank != injected:
        return f"WRONG: rank {injected} was slowed down, rank {outcome.named_rank} was named"
    if outcome.false_alarms:
        names = ", ".join(alert.name for alert in outcome.false_alarms)
        return f"RIGHT rank {injected}, but with false alarms: {names}"
    return f"RIGHT: rank {injected} was slowed down and named {outcome.detection_seconds:.0f} s later"


def as_json(outcome: Outcome) -> str:
    """The outcome for a program."""
    return json.dumps({"right": outcome.right, **asdict(outcome)}, indent=2)
