"""Collector `dcgm`: relays from a dcgm-exporter on this node what NVML does not give."""

from __future__ import annotations

import logging

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.dcgm.client import fetch, parse_endpoint
from rankwatch_agent.sources.dcgm.fields import all_names
from rankwatch_agent.sources.dcgm.relay import relay
from rankwatch_agent.sources.dcgm.samples import parse_answer
from rankwatch_agent.sources.gpu.inventory import GpuInventory

logger = logging.getLogger(__name__)

_UNMATCHED = metric("rankwatch_dcgm_gpus_unmatched")

_ASK_SHARE = 0.8
"""Part of the collector's deadline that the exporter may use."""


_PATIENT_RUNS = 3
"""Runs in which NVML may show no GPU before the log tells: a driver may take 20 s to answer at first."""


class DcgmCollector:
    """One endpoint; raises ConfigError at once where it is no URL. `fields` by either of their names."""

    name = "dcgm"

    def __init__(
        self, *, endpoint: str, fields: tuple[str, ...], inventory: GpuInventory, schedule: Schedule
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._endpoint = parse_endpoint(endpoint) if endpoint else None
        self._wanted = all_names(fields)
        self._inventory = inventory
        self._blind_runs = 0
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Ask once; raises NotApplicable without an endpoint, CollectError where the answer is of no use."""
        if self._endpoint is None:
            raise NotApplicable("no dcgm_endpoint is set")
        body = fetch(self._endpoint, _ASK_SHARE * self.deadline_seconds)
        answer = parse_answer(body, self._wanted)
        if answer.fields == 0:
            # dcgm-exporter answers so for seconds while it reloads, and for ever when DCGM came too late.
            raise CollectError(f"could not use {self._endpoint}: the answer holds no field of DCGM")
        if answer.cut:
            self._warn(f"{self._endpoint} answers with more lines than are read; the rest is left out")
        relayed = relay(answer.samples, self._inventory)
        self._blind_runs = self._blind_runs + 1 if relayed.adopted else 0
        if self._blind_runs >= _PATIENT_RUNS:
            self._warn(
                f"NVML shows no GPU; those that {self._endpoint} tells of keep the names it gives them"
            )
        return Collection((*relayed.series, Series(_UNMATCHED, (), len(relayed.unmatched))))

    def _warn(self, message: str) -> None:
        if self._log_limit.allows(message):
            logger.warning("collector %s: %s", self.name, message)
