"""The story of the demo: a healthy run, a fault nobody announced, and the page that names the rank."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rankwatch_alerts import RuleConfig
from rankwatch_cli.demo import parts
from rankwatch_cli.demo.figures import Figures, Suspect, read_figures, suspect
from rankwatch_cli.demo.receiver import Alert, Receiver
from rankwatch_cli.demo.workspace import DemoError, Workspace

STRAGGLER = "RankwatchStraggler"
HEALTHY_SECONDS = 12.0
"""Time the run is watched before the fault: longer than the rules' window at the demo's scale."""
_WINDOW_SECONDS = 10.0
_PATIENCE_SECONDS = 10.0
"""Longest time for which the agent may leave scrapes unanswered."""
_CONFIRMATIONS = 10
"""Without Prometheus: scrapes in a row, one a second, that must name the same rank."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the person at the keyboard chose."""

    ranks: int
    computing: bool
    keep: bool
    healthy_seconds: float | None
    """Watch a healthy run this long and inject nothing."""
    deadline_seconds: float
    """Longest time from the first line to the alert."""
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the demo ended."""

    injected_rank: int | None
    named_rank: int | None
    detection_seconds: float | None
    """From the injection to the alert's arrival."""
    alert: Alert | None
    suspect: Suspect | None
    false_alarms: tuple[Alert, ...]

    @property
    def right(self) -> bool:
        """The injected rank was named and nothing else was said."""
        return self.named_rank == self.injected_rank and not self.false_alarms


@dataclass(frozen=True)
class Addresses:
    """Where the parts listen, HOST:PORT; empty for those that do not run."""

    black_boxes: Path
    agent: str
    prometheus: str = ""
    alertmanager: str = ""


class Demo:
    """One demo in a workspace; `say` prints a line."""

    def __init__(self, workspace: Workspace, options: Options, say: Callable[[str], None]) -> None:
        self._workspace = workspace
        self._options = options
        self._say = say
        self._began = time.monotonic()
        self._faults = workspace.directory / "faults"
        self._config = RuleConfig.for_demo()
        self._receiver: Receiver | None = None
        self._false_alarms: list[Alert] = []
        self._history: list[tuple[float, Figures]] = []
        self._suspects: list[int] = []
        self._told_at = 0.0

    def play(self, ready: Callable[[Addresses], None], tell: Callable[[Outcome], None]) -> Outcome:
        """Run the demo; raises DemoError.

        ready: called with the addresses once all parts run.
        tell: called with the outcome, before `keep` keeps everything running.
        """
        servers = parts.find_servers()
        sentence = parts.missing_servers(list(servers))
        with self._receive(enabled=sentence is None) as receiver:
            self._receiver = receiver
            if sentence:
                self._say(sentence)
            addresses = self._start(servers)
            ready(addresses)
            self._wait_for_steps(addresses)
            if self._options.healthy_seconds is not None:
                outcome = self._watch_healthy(addresses, self._options.healthy_seconds)
                tell(outcome)
                return outcome
            self._watch(addresses, HEALTHY_SECONDS, "healthy")
            outcome = self._inject_and_wait(addresses)
            tell(outcome)
            if self._options.keep:
                self._say("kept running; Ctrl-C ends everything")
                while True:
                    self._tick(addresses, "kept running")
            return outcome

    def _receive(self, *, enabled: bool) -> AbstractContextManager[Receiver | None]:
        return Receiver() if enabled else nullcontext()

    def _start(self, servers: dict[str, str]) -> Addresses:
        workspace, options = self._workspace, self._options
        parts.start_trainer(workspace, ranks=options.ranks, computing=options.computing, faults=self._faults)
        agent = parts.start_agent(workspace)
        if self._receiver is None:
            return Addresses(parts.black_boxes(workspace), agent)
        alertmanager = parts.start_alertmanager(
            workspace, servers["alertmanager"], self._config, self._receiver.url
        )
        prometheus = parts.start_prometheus(
            workspace, servers["prometheus"], self._config, agent=agent, alertmanager=alertmanager
        )
        return Addresses(parts.black_boxes(workspace), agent, prometheus, alertmanager)

    def _wait_for_steps(self, addresses: Addresses) -> None:
        self._say(f"waiting for the first steps of {self._options.ranks} ranks")

        def stepping() -> bool:
            figures = self._figures(addresses)
            return len(figures) == self._options.ranks and all(each.steps >= 3 for each in figures.values())

        left = self._options.deadline_seconds - (time.monotonic() - self._began)
        seconds = max(parts.START_SECONDS, left)
        parts.wait_until(self._workspace, stepping, "the trainer's first steps", seconds=seconds)

    def _watch_healthy(self, addresses: Addresses, seconds: float) -> Outcome:
        self._watch(addresses, seconds, "healthy")
        return self._outcome(None, None, None)

    def _watch(self, addresses: Addresses, seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            alert = self._tick(addresses, what)
            if alert is not None:
                self._false_alarms.append(alert)
                self._say(f"FALSE ALARM: {alert.name} {alert.labels}")

    def _inject_and_wait(self, addresses: Addresses) -> Outcome:
        source = random.Random(self._options.seed)
        rank = source.randrange(self._options.ranks)
        factor = round(source.uniform(1.5, 2.0), 2)
        write_atomically(self._faults, f"straggler:rank={rank},factor={factor}\n")
        injected = time.monotonic()
        self._say(f"injected: a rank chosen at random now computes {factor} times as long")
        while time.monotonic() - self._began < self._options.deadline_seconds:
            alert = self._tick(addresses, "one rank slow")
            if alert is not None and alert.name == STRAGGLER:
                return self._outcome(rank, injected, alert)
            if alert is not None:
                self._false_alarms.append(alert)
            if self._receiver is None and (found := self._suspect()):
                return self._outcome(rank, injected, None, found)
        return self._outcome(rank, injected, None)

    def _outcome(
        self, injected: int | None, since: float | None, alert: Alert | None, found: Suspect | None = None
    ) -> Outcome:
        at = alert.received_at if alert else time.monotonic()
        named = int(alert.labels.get("rank", "-1")) if alert else found.rank if found else None
        return Outcome(
            injected_rank=injected,
            named_rank=named,
            detection_seconds=at - since if since is not None and named is not None else None,
            alert=alert,
            suspect=found,
            false_alarms=tuple(self._false_alarms),
        )

    def _tick(self, addresses: Addresses, what: str) -> Alert | None:
        """About a second of the demo: look at every part, show progress, return an alert if one came."""
        self._workspace.check()
        moment = time.monotonic()
        self._history = [each for each in self._history if each[0] > moment - 3 * _WINDOW_SECONDS]
        self._history.append((moment, self._figures(addresses)))
        self._show(what)
        if self._receiver is None:
            time.sleep(1.0)
            return None
        try:
            alert = self._receiver.alerts.get(timeout=1.0)
        except queue.Empty:
            return None
        return alert if alert.firing else None

    def _figures(self, addresses: Addresses) -> Figures:
        """One scrape of the agent; what fails is tried again, for a busy machine must not end the demo."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return read_figures(addresses.agent)
            except DemoError:
                # An agent that has ended says more than one that does not answer. A process that dies
                # closes its connections a moment before it counts as ended.
                self._workspace.check()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _show(self, what: str) -> None:
        before, then, figures = self._window()
        if figures is None or time.monotonic() - self._told_at < 4.0:
            return
        self._told_at = time.monotonic()
        steps = max((each.steps for each in figures.values()), default=0.0)
        pace = (steps - max(each.steps for each in then.values())) / max(self._history[-1][0] - before, 1e-9)
        self._say(f"step {steps:.0f}, {pace:.1f} steps/s, {len(figures)} ranks, {what}")

    def _window(self) -> tuple[float, Figures, Figures | None]:
        """(moment, figures) of the start of the window, and the newest figures."""
        moment, now = self._history[-1]
        for at, figures in self._history:
            if at >= moment - _WINDOW_SECONDS:
                return at, figures, now if at < moment else None
        return moment, now, None

    def _suspect(self) -> Suspect | None:
        """The rank that the agent's own figures have named several times in a row."""
        _, then, now = self._window()
        config = self._config
        found = (
            suspect(
                then,
                now,
                least_residual=config.straggler_residual,
                least_ranks=config.straggler_cohort_ranks,
            )
            if now
            else None
        )
        self._suspects = [*self._suspects, found.rank] if found else []
        last = self._suspects[-_CONFIRMATIONS:]
        return found if found and len(last) == _CONFIRMATIONS and len(set(last)) == 1 else None


def write_atomically(path: Path, text: str) -> None:
    """Put a file in place complete."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


__all__ = ["Addresses", "Demo", "DemoError", "Options", "Outcome"]
