"""A game day: many faults at once, below one Prometheus and one Alertmanager.

Each file in tests/e2e/game_day has a function `play`, which makes its faults in a cluster of its own and
waits for their alerts. All of them are played side by side, because each one mostly waits. But none starts
its processes while those of others do: agents that do not answer for seconds are faults that nobody made.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rankwatch_alerts import RuleConfig
from rankwatch_cli.demo.parts import Alert
from support.agent.process import AgentProcess, clean_environment
from support.e2e.monitored_system import (
    SECONDS_TO_ALERT,
    MonitoredSystem,
    node_agents,
    servers,
    write_targets,
)
from support.jobs.forked_ranks import forked_ranks
from support.servers.prometheus import poll, query

CONFIG = replace(
    RuleConfig.for_demo(),
    checkpoint_age_budget_seconds=60.0,
    checkpoint_blocking_share=0.6,
    loss_for_seconds=5.0,
    data_skew_for_seconds=10.0,
    gpu_idle_for_seconds=5.0,
    cost_for_seconds=5.0,
    startup_budget_seconds=40.0,
    success_least_attempts=4.0,
    goodput_fast_window_seconds=60.0,
    goodput_slow_window_seconds=720.0,
    slo_period_seconds=6720.0,
    disk_free_share=0.999,
    step_regression=10.0,
    jitter_ranks=4,
    event_window_seconds=45.0,
    rules_failing_window_seconds=180.0,
    runbook_base_url="https://runbooks.test",
    dashboard_base_url="https://grafana.test",
)
"""As in the demo, but with shorter times: a tiny model recovers from a blow-up in seconds, and a run that
does not start must be slow before it stands still. Windows and period of goodput are in the same proportions
as in production. No disk on which this runs is so empty. When further jobs start on the same cores, all
steps become slower, indeed, and short steps are late now on one rank, now on another. Events are remembered
for longer than alerts wait for a telemetry that is absent, as in production. The start of all processes takes
no less time than elsewhere, and leaves little of two cores to rules: up to a minute of the three in which the
evaluations that are missed are counted here."""
MOST_RANKS = 50
"""Of torch, at once: two cores run no more of them at their pace."""
IDLE_SHARE, MOST_SECONDS_TO_START = 0.25, 15.0
"""Of the cores, over two seconds: the processes of a play have started. Others may keep them busy longer."""

Shown = TypeVar("Shown")
Play = Callable[["GameDay"], Shown]


class GameDay:
    """Servers that watch several clusters, and the plays that go on below them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._alerts: list[Alert] = []
        self._room = threading.Condition()
        self._free = MOST_RANKS
        self._over = False
        self._systems: list[MonitoredSystem] = []
        self._playing: dict[Play[Any], Future[Any]] = {}

    def begin(self, plays: Sequence[Play[Any]]) -> None:
        """Start the servers, and all plays, in this order."""
        pool = self._stack.enter_context(ThreadPoolExecutor(len(plays) + 1))  # ends last: plays may still ask
        self._forked = self._stack.enter_context(forked_ranks(clean_environment()))
        self._url, self._receiver = self._stack.enter_context(servers(self.directory, CONFIG))
        turns = {each: threading.Event() for each in plays}
        self._playing = {each: pool.submit(self._played, each, turn) for each, turn in turns.items()}
        pool.submit(self._give_turns, list(turns.values()))

    def _played(self, play: Play[Shown], turn: threading.Event) -> Shown:
        turn.wait()
        return play(self)

    def _give_turns(self, turns: Sequence[threading.Event]) -> None:
        for turn in turns:
            turn.set()
            latest = time.monotonic() + MOST_SECONDS_TO_START
            while not self._over and time.monotonic() < latest and _idle_share(2.0) < IDLE_SHARE:
                pass

    @contextmanager
    def shown(self, play: Play[Shown]) -> Iterator[Shown]:
        """What the play returns. The day ends when nobody looks at its last play any more."""
        try:
            yield self._playing[play].result()
        finally:
            del self._playing[play]
            if not self._playing:
                self.end()

    def cluster(
        self, name: str, nodes: Sequence[str] = (), agent_flags: Sequence[str] = ()
    ) -> MonitoredSystem:
        """A cluster with an agent on each of these nodes."""
        directory = self.directory / name
        directory.mkdir()
        stack = ExitStack()
        agents = stack.enter_context(node_agents(directory, CONFIG, nodes, ("--cluster", name, *agent_flags)))
        system = MonitoredSystem(
            directory, self._url, agents, self._receiver, self._alerts, name, stack, self._forked
        )
        self._systems.append(system)
        stack.callback(write_targets, self.directory, name, ())  # else its dead agents alert all clusters
        self.watch(system)
        return system

    def watch(self, system: MonitoredSystem, *more: AgentProcess) -> None:
        """Scrape the agents of the system from now on, and more that others have started."""
        agents = (*system.agents.values(), *more)
        write_targets(self.directory, system.cluster, agents)
        seen = f'count(rankwatch_agent_info{{cluster="{system.cluster}"}}) == {len(agents)}'
        poll(lambda: not agents or query(self._url, seen), SECONDS_TO_ALERT, f"agents of {system.cluster}")

    @contextmanager
    def room_for(self, ranks: int) -> Iterator[None]:
        """Wait until so many ranks of torch may start; they end with the block."""
        with self._room:
            self._room.wait_for(lambda: self._over or ranks <= self._free)
            if self._over:
                pytest.fail("the game day was over before all of its plays")
            self._free -= ranks
        try:
            yield
        finally:
            with self._room:
                self._free += ranks
                self._room.notify_all()

    def end(self) -> None:
        """End every process. Plays that go on fail."""
        with self._room:
            self._over = True
            self._room.notify_all()
        for system in self._systems:
            system.end()
        self._stack.close()


def _idle_share(seconds: float) -> float:
    """Share of the next seconds for which the cores of this machine have nothing to do."""
    before = _idle_seconds()
    time.sleep(seconds)
    return (_idle_seconds() - before) / seconds / (os.cpu_count() or 1)


def _idle_seconds() -> float:
    _, _, _, _, ticks, *_ = Path("/proc/stat").read_text().split(maxsplit=5)  # proc_stat(5)
    return int(ticks) / os.sysconf("SC_CLK_TCK")
