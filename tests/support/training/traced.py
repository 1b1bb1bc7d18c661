"""Real ranks that record, and the part of an agent that makes their spans, as one node of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankwatch_agent.runtime.collector import Collection, Schedule
from rankwatch_agent.runtime.otlp_endpoint import build_resource
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.notes import Exemplars, Notes, OpenIncident
from rankwatch_agent.training.steps.assembly import SETTLE_SECONDS
from rankwatch_spans.collector import TracesCollector, TraceSettings
from rankwatch_spans.queue import SpanQueue, TraceSpan
from rankwatch_spans.sending import as_sdk_span

_RESOURCE = build_resource(node="n", cluster="c", version="0")
_SCOPE = InstrumentationScope("test")
RANK = """
import sys, time, rankwatch
rank, world, steps, how = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with rankwatch.start(run="job", rank=rank, world_size=world) as run:
    if how == "resumed":
        run.resumed(0)
    for number in range(steps):
        with run.step(number):
            with run.phase("forward"):
                time.sleep(0.05 if how == "slow" and number == steps - 5 else 0.001)
            run.scalar("loss", 2.5)
        if how == "lost" and number == steps - 2:
            run.begin_step(number + 1)
            import os
            os._exit(1)
    with run.checkpoint("save", step=steps - 1) as save:
        with save.stage("write"):
            time.sleep(0.001)
        save.bytes = 10
    with run.evaluation():
        time.sleep(0.001)
    if how == "failed":
        with run.step(steps):
            raise ValueError("no luck")
"""


def train(directory: Path, *, ranks: int = 1, first: int = 0, world: int = 1, steps: int = 3, how: str = "ok",
          **variables: str) -> None:  # fmt: skip
    """Run some ranks of an attempt to their end."""
    env = {**os.environ, "RANKWATCH_DIR": str(directory), "RANKWATCH_SUMMARY": "0", **variables}
    program = [sys.executable, "-c", RANK]
    started = [
        subprocess.Popen(
            [*program, str(rank), str(world), str(steps), how], env=env, stderr=subprocess.DEVNULL
        )
        for rank in range(first, first + ranks)
    ]
    for each in started:
        each.wait(timeout=60)


class Node:
    """The part of an agent that makes spans. Its moments go on by `pass_time` only."""

    def __init__(
        self,
        directory: Path,
        *,
        state: Path | None = None,
        one_in: int = 1,
        hold_seconds: float = 1.0,
        node: str = "n0",
        incidents: Callable[[], Mapping[str, OpenIncident]] = dict,
    ) -> None:
        self.notes, self.queue, exemplars = Notes(), SpanQueue(100_000), Exemplars()
        self._ahead = 0.0
        self._ranks = RanksCollector(
            directory=directory, notes=self.notes, exemplars=exemplars, monotonic=self._monotonic
        )
        # The first agent of a test is older than the ranks. A next one is younger, and knows what was sent.
        restarted = state is not None and (state / "traces.json").exists()
        started = time.time() - (0.0 if restarted else 3600.0)
        built = False
        self.traces = TracesCollector(
            notes=self.notes,
            queue=self.queue,
            exemplars=exemplars,
            settings=TraceSettings(
                cluster="c",
                node=node,
                one_in=one_in,
                heartbeat_seconds=600.0,
                hold_seconds=hold_seconds,
                directory=state,
            ),
            open_incidents=incidents,
            schedule=Schedule(1.0, 10.0),
            monotonic=self._monotonic,
            wall=lambda: time.time() + self._ahead if built else started,
        )
        built = True
        self.sent: list[TraceSpan] = []

    def _monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def read(self) -> Collection:
        """Read the boxes once, and make the spans."""
        collection = self._ranks.collect()
        self.traces.collect()
        self.sent += self.queue.take(100_000)
        return collection

    def pass_time(self, seconds: float) -> None:
        """Let time pass, second by second."""
        for _ in range(int(seconds)):
            self._ahead += max(1.0, SETTLE_SECONDS)
            self.read()

    def read_for(self, seconds: float) -> Self:
        """Read the boxes, and let time pass in which what they hold is sent."""
        self.read()
        self.pass_time(seconds)
        return self

    def named(self, name: str) -> list[TraceSpan]:
        return [each for each in self.sent if each.name == name]


def check_spans(node: Node, *, unique: bool = True) -> None:
    """The spans can be sent, and none ends before it starts."""
    for each in node.sent:
        assert 0 <= each.start <= each.end < 1 << 63, each
        assert each.name.isprintable(), each
    encode_spans([as_sdk_span(each, _RESOURCE, _SCOPE) for each in node.sent])
    if unique:
        ids = Counter((each.trace, each.span) for each in node.sent)
        assert [each for each, count in ids.items() if count > 1] == []
