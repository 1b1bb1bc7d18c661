"""`rankwatch demo`: inject a straggler into a real run and print the alert that names it."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import note, show

if TYPE_CHECKING:
    from rankwatch_cli.demo.scenario import Addresses, Outcome


FAILED_STATUS = 1
_EXTRAS = {"agent": "prometheus_client", "alerts": "yaml", "trainer": "torch"}
"""Extra -> a module that it brings."""
_FIRST = ("alertname", "severity", "run", "rank", "node", "cause", "phase", "slowdown")
"""Labels and annotations that somebody who was woken reads first."""


def main(arguments: Sequence[str]) -> int:
    """Play the demo. Exit status 0 if the right rank was named in time, else 1. Raises UserError."""
    given = _parser().parse_args(arguments)
    _check(given)
    return _play(given)


def _play(given: Namespace) -> int:
    # Only here: these need the extras that `_check` asks for.
    from rankwatch_cli.demo.scenario import Demo, Options
    from rankwatch_cli.demo.workspace import DemoError, Workspace

    options = Options(
        ranks=given.ranks,
        computing=given.cpu,
        keep=given.keep,
        healthy_seconds=given.healthy,
        deadline_seconds=given.deadline,
        seed=given.seed,
    )
    signals = EndSignals()
    signals.install()
    began = time.monotonic()

    def say(text: str) -> None:
        show(f"[{time.monotonic() - began:5.1f} s] {text}")

    with Workspace(signals.check) as workspace:
        try:
            outcome = Demo(workspace, options, say).play(
                ready=lambda addresses: _show(addresses, say), show=lambda outcome: show(*_report(outcome))
            )
        except DemoError as error:
            note(f"rankwatch demo: {error}")
            return FAILED_STATUS
    if given.result:
        given.result.write_text(json.dumps({"right": outcome.right, **asdict(outcome)}, indent=2))
    return 0 if outcome.right else FAILED_STATUS


def _check(given: Namespace) -> None:
    """Raise UserError for what would otherwise show only at the end, or never."""
    if given.ranks < 3:
        raise UserError(f"--ranks is {given.ranks}, expected at least 3: of two, neither can be named")
    for name in ("healthy", "deadline"):
        seconds = getattr(given, name)
        if seconds is not None and not 0.0 < seconds < float("inf"):
            raise UserError(f"--{name} is {seconds}, expected a number of seconds above 0")
    if given.healthy is not None and given.keep:
        raise UserError("--keep goes with an injected fault, not with --healthy")
    if given.result is not None and not os.access(given.result.absolute().parent, os.W_OK):
        raise UserError(
            f"could not write --result {given.result}: no writable directory {given.result.parent}"
        )
    missing = [name for name, module in _EXTRAS.items() if find_spec(module) is None]
    if missing:
        extras = ",".join(missing)
        raise UserError(f"the demo needs more: in a clone of rankwatch, pip install '.[{extras}]' brings it")


def _show(addresses: Addresses, say: Callable[[str], None]) -> None:
    say(f"{'black boxes':<13} {addresses.black_boxes}")
    for name in ("agent", "prometheus", "alertmanager"):
        if address := getattr(addresses, name):
            say(f"{name:<13} http://{address}")


def _report(outcome: Outcome) -> list[str]:
    """Return the outcome, in lines for a person."""
    if outcome.injected_rank is None:
        count = len(outcome.false_alarms)
        return ["healthy run: no alert" if not count else f"healthy run: {count} false alarm(s)"]
    lines: list[str] = []
    if outcome.alert is not None:
        lines += ["", "The alert as Alertmanager delivered it:"]
        shown = {**outcome.alert.labels, **outcome.alert.annotations}
        first = [name for name in _FIRST if name in shown]
        for name in [*first, *sorted(shown.keys() - set(first))]:
            lines += textwrap.wrap(f"  {name:<13} {shown[name]}", 110, subsequent_indent=" " * 16)
        lines += ["", f"What to do: rankwatch runbook {outcome.alert.name}"]
    elif outcome.verdict is not None:
        lines += ["", "The straggler as `rankwatch diagnose run` names it (no Prometheus, no alert):"]
        lines += [f"  rank          {outcome.named_rank}"]
        lines += [f"  cause         {outcome.verdict.cause}", f"  phase         {outcome.verdict.phase}"]
        lines += [f"  slowdown      {outcome.verdict.slowdown:.2f}"]
    return [*lines, "", _comparison(outcome)]


def _comparison(outcome: Outcome) -> str:
    """Return the named rank against the injected one."""
    injected = outcome.injected_rank
    if outcome.named_rank is None:
        return f"MISSED: rank {injected} was slowed down and nobody was named in time"
    if outcome.named_rank != injected:
        return f"WRONG: rank {injected} was slowed down, rank {outcome.named_rank} was named"
    if outcome.false_alarms:
        names = ", ".join(
            f"{alert.name} {alert.labels.get('cause') or alert.labels.get('reason', '')}".rstrip()
            for alert in outcome.false_alarms
        )
        return f"RIGHT rank {injected}, but with false alarms: {names}"
    return f"RIGHT: rank {injected} was slowed down and named {outcome.detection_seconds:.0f} s later"


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch demo",
        description=(
            "Start Prometheus, Alertmanager, the agent and a trainer on free loopback ports, slow one rank\n"
            "down at random, and print the alert that names it. Nothing is left behind."
        ),
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks of the trainer (default 4)")
    parser.add_argument("--cpu", action="store_true", help="ranks compute instead of sleeping")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument(
        "--healthy", type=float, metavar="SECONDS", help="inject nothing; watch this long for false alarms"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="give up after it (default 120)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="choose the same rank again")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the outcome as JSON")
    return parser


class EndSignals:
    """Raises when SIGINT or SIGTERM comes, and again at every `check` from then on.

    The second is needed because Python may lose the first. An exception raised by a signal handler is
    replaced if it comes while another error's message is formatted, and the parser of metrics raises and
    catches such an error at each value with a decimal point.
    """

    def __init__(self) -> None:
        self._received: int | None = None

    def install(self) -> None:
        """Handle SIGINT and SIGTERM from now on. Main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; raises as `check` does."""
        self._received = number
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt after SIGINT, SystemExit with a shell's exit status after SIGTERM."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise SystemExit(128 + self._received)
