"""What the demo does: a healthy run, a fault on a random rank, and the verdict that names the rank."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rankwatch.conventions.states import Cause
from rankwatch.untrusted.paths import write_at_once
from rankwatch_alerts import Alert as AlertName
from rankwatch_alerts import RuleConfig
from rankwatch_cli.demo import parts
from rankwatch_cli.demo.parts import Alert, Receiver
from rankwatch_cli.demo.workspace import DemoError, Workspace
from rankwatch_diagnosis.straggler.verdict import Verdict

HEALTHY_SECONDS = 12.0
"""Time without a fault before the injection: longer than the rules' window at the demo's scale."""
_RETRY_SECONDS = 10.0
"""Longest time for which the agent may leave scrapes unanswered."""
_CONFIRMATIONS = 3
"""Without Prometheus: verdicts in a row that must name the same rank."""
_PROGRESS_SECONDS = 4.0
"""Time between two lines of progress."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of the command line."""

    ranks: int
    computing: bool
    keep: bool
    healthy_seconds: float | None
    """Watch a healthy run this long and inject nothing."""
    deadline_seconds: float
    """Longest time from the first line to the verdict."""
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the demo ended."""

    injected_rank: int | None
    named_rank: int | None
    detection_seconds: float | None
    """From the injection to the alert's arrival, or to the engine's verdict."""
    alert: Alert | None
    verdict: Verdict | None
    """Verdict of the straggler engine on the black boxes, without Prometheus."""
    false_alarms: tuple[Alert, ...]

    @property
    def right(self) -> bool:
        """True if the injected rank was named and there was no other alert."""
        return self.named_rank == self.injected_rank and not self.false_alarms


@dataclass(frozen=True)
class Addresses:
    """Where the parts listen, HOST:PORT; empty for a part that does not run."""

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
        self._last_progress: tuple[float, float] | None = None
        """(moment, step) of the last line of progress."""

    def play(self, ready: Callable[[Addresses], None], show: Callable[[Outcome], None]) -> Outcome:
        """Run the demo; raises DemoError.

        ready: called with the addresses once all parts run.
        show: called with the outcome, before `keep` keeps everything running.
        """
        servers = parts.find_servers()
        missing = parts.missing_servers(list(servers))
        with self._receive(enabled=missing is None) as receiver:
            self._receiver = receiver
            if missing:
                self._say(missing)
            addresses = self._start(servers)
            ready(addresses)
            self._wait_for_steps(addresses)
            if self._options.healthy_seconds is not None:
                self._watch(addresses, self._options.healthy_seconds)
                outcome = self._outcome()
                show(outcome)
                return outcome
            self._watch(addresses, HEALTHY_SECONDS)
            outcome = self._inject_and_wait(addresses)
            show(outcome)
            if self._options.keep:
                self._say("kept running; Ctrl-C ends everything")
                while True:
                    self._wait_a_second(addresses, "kept running")
            return outcome

    def _receive(self, *, enabled: bool) -> AbstractContextManager[Receiver | None]:
        return Receiver() if enabled else nullcontext()

    def _start(self, servers: dict[str, str]) -> Addresses:
        workspace, options = self._workspace, self._options
        parts.start_trainer(workspace, ranks=options.ranks, computing=options.computing, faults=self._faults)
        agent = parts.start_agent(workspace, self._config)
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
            steps = self._steps(addresses)
            return len(steps) == self._options.ranks and min(steps.values()) >= 3

        left = self._options.deadline_seconds - (time.monotonic() - self._began)
        seconds = max(parts.START_SECONDS, left)
        parts.wait_until(self._workspace, stepping, "the trainer's first steps", seconds=seconds)

    def _watch(self, addresses: Addresses, seconds: float) -> None:
        """Watch a healthy run; each alert is a false alarm."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            alert = self._wait_a_second(addresses, "healthy")
            if alert is not None:
                self._false_alarms.append(alert)
                self._say(f"FALSE ALARM: {alert.name} {alert.labels}")

    def _inject_and_wait(self, addresses: Addresses) -> Outcome:
        source = random.Random(self._options.seed)
        rank = source.randrange(self._options.ranks)
        factor = round(source.uniform(1.5, 2.0), 2)
        write_at_once(self._faults, f"straggler:rank={rank},factor={factor}\n".encode())
        injected = time.monotonic()
        self._say(f"injected: a rank chosen at random now computes {factor} times as long")
        named: list[int] = []
        while time.monotonic() - self._began < self._options.deadline_seconds:
            alert = self._wait_a_second(addresses, "one rank slow")
            if alert is not None and _names_a_slow_rank(alert):
                return self._outcome(rank, injected, alert)
            if alert is not None:
                self._false_alarms.append(alert)
            if self._receiver is None:
                verdict = _straggler(addresses)
                named = [*named, verdict.ranks[0]] if verdict else []
                if len(named) >= _CONFIRMATIONS and len(set(named[-_CONFIRMATIONS:])) == 1:
                    return self._outcome(rank, injected, verdict=verdict)
        return self._outcome(rank, injected)

    def _outcome(
        self,
        injected: int | None = None,
        since: float | None = None,
        alert: Alert | None = None,
        verdict: Verdict | None = None,
    ) -> Outcome:
        at = alert.received_at if alert else time.monotonic()
        named = int(alert.labels.get("rank", "-1")) if alert else verdict.ranks[0] if verdict else None
        return Outcome(
            injected_rank=injected,
            named_rank=named,
            detection_seconds=at - since if since is not None and named is not None else None,
            alert=alert,
            verdict=verdict,
            false_alarms=tuple(self._false_alarms),
        )

    def _wait_a_second(self, addresses: Addresses, what: str) -> Alert | None:
        """Check every part and show progress; returns an alert if one comes within about a second."""
        self._workspace.check()
        self._show_progress(addresses, what)
        if self._receiver is None:
            time.sleep(1.0)
            return None
        try:
            alert = self._receiver.alerts.get(timeout=1.0)
        except queue.Empty:
            return None
        return alert if alert.firing else None

    def _show_progress(self, addresses: Addresses, what: str) -> None:
        moment = time.monotonic()
        if self._last_progress and moment - self._last_progress[0] < _PROGRESS_SECONDS:
            return
        steps = self._steps(addresses)
        step = max(steps.values(), default=0.0)
        if self._last_progress:
            then, earlier = self._last_progress
            pace = (step - earlier) / (moment - then)
            self._say(f"step {step:.0f}, {pace:.1f} steps/s, {len(steps)} ranks, {what}")
        self._last_progress = (moment, step)

    def _steps(self, addresses: Addresses) -> dict[int, float]:
        """Read steps from the agent. A failed scrape is repeated: a busy machine must not end the demo."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return parts.read_steps(addresses.agent)
            except DemoError:
                # That the agent has ended says more than that it does not answer. A process that dies closes
                # its connections a moment before it counts as ended.
                self._workspace.check()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _names_a_slow_rank(alert: Alert) -> bool:
    return alert.name == AlertName.RUN_SLOW and alert.labels.get("cause") == Cause.SLOW_RANK


def _straggler(addresses: Addresses) -> Verdict | None:
    """Return what the engine says of the black boxes, if it names a slow rank."""
    from rankwatch_diagnosis.run.engine import diagnose_run  # needs NumPy

    verdict = diagnose_run(addresses.black_boxes / parts.RUN).straggler
    return verdict if verdict and verdict.cause is Cause.SLOW_RANK else None
