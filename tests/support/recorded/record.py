"""Record a healthy run and runs with faults from the real stack: `make record`.

Trainers, an agent, Prometheus with the generated rules and Alertmanager run for some minutes; then every
series of Prometheus goes into one file, which the tests read.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.e2e.monitored_system import MonitoredSystem, monitored_system
from support.recorded.runs import CONFIG, FILE, INTERVAL_SECONDS, NODE, RUNS, to_openmetrics
from support.servers.prometheus import get_json

_SECONDS_AFTER_ALERTS = 15.0
_ALL = '{__name__=~"rankwatch_.+|.+:rankwatch_.+|ALERTS|ALERTS_FOR_STATE|up|scrape_.+|prometheus_.+"}'
_LONGEST_SECONDS = 900


def _play(system: MonitoredSystem) -> None:
    """Start all runs and wait for the alert of each fault."""
    for each in RUNS:
        system.train(each.run, each.faults, node=NODE, ranks=each.ranks)
    for each in RUNS:
        if each.alert:
            system.alert(each.run, each.alert, **each.labels)
            print(f"{each.run}: {each.alert} {dict(each.labels)}", flush=True)
    time.sleep(_SECONDS_AFTER_ALERTS)


def _series(url: str) -> list[dict[str, Any]]:
    """All series up to now, at moments that are multiples of the interval."""
    end = int(time.time()) // INTERVAL_SECONDS * INTERVAL_SECONDS
    asked = {
        "query": _ALL,
        "start": f"{end - _LONGEST_SECONDS}",
        "end": f"{end}",
        "step": f"{INTERVAL_SECONDS}",
    }
    series: list[dict[str, Any]] = get_json(f"{url}/api/v1/query_range", asked)["data"]["result"]
    return series


def main() -> int:
    """Write the recording; returns the exit status."""
    with (
        tempfile.TemporaryDirectory() as directory,
        monitored_system(Path(directory), CONFIG, (NODE,)) as system,
    ):
        _play(system)
        series = _series(system.prometheus_url)
    lines = list(to_openmetrics(series))
    FILE.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    print(f"{FILE.name}: {len(series)} series, {len(lines)} samples, {FILE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
