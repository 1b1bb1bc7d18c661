"""What a live run costs, by a real agent with a price table."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent.process import AgentProcess, agent_process, until
from support.training.ranks import go_on, rank

pytestmark = pytest.mark.process

PRICE = """
[[price]]
gpu_model = "{model}"
price_per_hour = {price}
currency = "EUR"
basis = "list"
[[budget]]
run = "job*"
amount = 5
currency = "EUR"
basis = "list"
"""
FLAGS = ("--collectors", "ranks,cost", "--intervals-seconds", "cost=0.2,ranks=0.2", "--state-directory")


def value(agent: AgentProcess, name: str, *labels: str) -> float | None:
    """Of the series of a run with these labels, as the agent exports it; None without one."""
    for line in agent.page().splitlines():
        if line.startswith(f"{name}{{") and all(each in line for each in labels):
            return float(line.rpartition(" ")[2])
    return None


def test_spent(tmp_path: Path) -> None:
    """A new price changes what comes, and not what was; money outlives the agent and ends with the run."""
    (tmp_path / "blackboxes").mkdir()
    table = tmp_path / "prices.toml"
    table.write_text(PRICE.format(model="cpu", price=3600))
    flags = (*FLAGS, str(tmp_path / "state"), "--price-table", str(table))
    with rank(tmp_path / "blackboxes", "steps(3)\nready()") as process:
        with agent_process(tmp_path, *flags) as agent:

            def spent() -> float:
                return value(agent, "rankwatch_run_spent", 'currency="EUR"') or 0.0

            until(lambda: spent() > 1.0, "a euro is spent")
            assert value(agent, "rankwatch_run_price_known", 'gpu_model="cpu"') == 1.0
            assert value(agent, "rankwatch_run_budget", 'basis="list"') == 5.0
            table.write_text(PRICE.format(model="cpu", price=0.001))
            until(
                lambda: value(agent, "rankwatch_gpu_price_per_hour", 'gpu_model="cpu"') == 0.001,
                "the new price is in force",
            )
            before = spent()
            assert before > 1.0
            table.write_text("[[price]]\n")
            until(
                lambda: (value(agent, "rankwatch_price_table_failures_total") or 0.0) >= 1.0,
                "the table that cannot be used is counted",
            )
            assert spent() == pytest.approx(before, abs=0.1)
            assert agent.stop()[0] == 0
        table.write_text(PRICE.format(model="cpu", price=0.001))
        with agent_process(tmp_path, *flags) as agent:
            until(lambda: value(agent, "rankwatch_run_spent") is not None, "the next agent knows the run")
            assert (value(agent, "rankwatch_run_spent") or 0.0) == pytest.approx(before, abs=0.1)
            go_on(process)
            process.wait(timeout=60)
            until(lambda: value(agent, "rankwatch_run_allocated_gpus") is None, "nothing is charged any more")


def test_no_price(tmp_path: Path) -> None:
    """No series of money, never 0, and one state that says why."""
    (tmp_path / "blackboxes").mkdir()
    table = tmp_path / "prices.toml"
    table.write_text(PRICE.format(model="NVIDIA H100*", price=2))
    flags = (*FLAGS, str(tmp_path / "state"), "--price-table", str(table))
    with rank(tmp_path / "blackboxes", "steps(3)\nready()"), agent_process(tmp_path, *flags) as agent:
        until(
            lambda: value(agent, "rankwatch_run_price_known", 'gpu_model="cpu"') == 0.0,
            "the agent says that there is no price",
        )
        for name in ("rankwatch_run_spent", "rankwatch_gpu_price_per_hour", "rankwatch_cost_total"):
            assert value(agent, name) is None
