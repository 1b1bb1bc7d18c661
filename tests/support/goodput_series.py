"""The account of time as an agent exports it."""

from __future__ import annotations

from rankwatch.conventions.states import GoodputState
from support.agent.process import AgentProcess, fetch


def exported(agent: AgentProcess) -> tuple[dict[str, float], float, int]:
    """Seconds by state, highest step and replayed steps."""
    seconds = dict.fromkeys(GoodputState, 0.0)
    highest, replayed = -1.0, 0
    for line in fetch(agent.address, "/metrics").body.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("rankwatch_goodput_seconds_total{"):
            seconds[GoodputState(name.partition('state="')[2].partition('"')[0])] = float(value)
        elif name.startswith("rankwatch_run_highest_step{"):
            highest = float(value)
        elif name.startswith("rankwatch_replayed_steps_total{"):
            replayed = int(float(value))
    return {str(state): value for state, value in seconds.items()}, highest, replayed
