"""Scenarios of the rule tests as one scrape target, in compressed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rankwatch.conventions import METRICS
from support.alerts.scenarios import STEP_SECONDS, TimeSeries

SECONDS_A_STEP = 2.0
"""A step of 15 s takes so long."""
SPEED = STEP_SECONDS / SECONDS_A_STEP
_SECONDS = frozenset(each.name for each in METRICS if each.unit == "seconds")


class Replay:
    """What the target serves. `began` is the Unix time of step 0; `down` makes every scrape fail."""

    def __init__(self, series: Sequence[TimeSeries], more: Callable[[int, float], str]) -> None:
        self._series = [(_head(each), each) for each in series]
        self._more = more
        self.began = time.time()
        self.down = False

    def page(self) -> str:
        """The exposition of this moment."""
        step = int((time.time() - self.began) / SECONDS_A_STEP)
        lines = [
            f"{head} {_scaled(each.name, each.samples[step], self.began)!r}\n"
            for head, each in self._series
            if step < len(each.samples) and isinstance(each.samples[step], float)
        ]
        return "".join(lines) + self._more(step, self.began)


def _scaled(name: str, value: object, began: float) -> float:
    """Times are shorter by as much as the steps are; moments count from the beginning."""
    assert isinstance(value, float)
    if name.endswith("_timestamp_seconds"):
        return began + value / SPEED
    return value / SPEED if name in _SECONDS else value


def _head(series: TimeSeries) -> str:
    return sample_head(series.name, series.labels)


def sample_head(name: str, labels: Mapping[str, str]) -> str:
    """Name and labels as they stand in an exposition."""
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}}"


@contextmanager
def served(replay: Replay) -> Iterator[str]:
    """The target on loopback; yields `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = replay.page().encode()
            self.send_response(503 if replay.down else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
