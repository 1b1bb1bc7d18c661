"""Answers of services that anybody may be behind: recorders of ranks, RAS, Prometheus, metadata, trackers.

One real server on loopback and one on a unix socket give the bytes of the document, whatever is asked.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from rankwatch.errors import TrackerError
from rankwatch.trackers.telling import MlflowServer
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.node_events import NodeEvents
from rankwatch_agent.sources.dcgm import fetch, parse_answer, parse_endpoint, relay
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.nccl_ras.collector import report_series
from rankwatch_agent.sources.nccl_ras.communicators import HealthTracker, Report
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_agent.sources.nccl_ras.text_form import parse_text
from rankwatch_agent.sources.preemption import PreemptionCollector
from rankwatch_agent.training.collectives.collector import RecordedRank
from rankwatch_agent.training.flight_recorder.ask import FlightRecorderClient, FlightRecorderError
from support.sources.dcgm import NORMAL, exposition
from support.sources.nccl_ras import Comm, Gone, json_status, text_status

from ..reader import COMMAND_REFUSES, Document, Reader, command, single
from .files import REPLY

_SECONDS = 5.0
_HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
_NCCL = "dump_nccl_trace_json"


class _Server:
    """Answers each question with what `answer` gives for its first line; `folder` holds the document."""

    def __init__(self, family: socket.AddressFamily, address: str | tuple[str, int]) -> None:
        self.folder = Path()
        self._listening = socket.socket(family)
        self._listening.bind(address)
        self._listening.listen()
        self.port = 0 if family is socket.AF_UNIX else self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection, suppress(OSError):  # the client has read enough
                connection.settimeout(_SECONDS)
                asked = connection.recv(65536)
                files = sorted(self.folder.iterdir(), key=lambda each: len(each.stem), reverse=True)
                # The file whose name the first line of the question holds.
                line = asked.partition(b"\r\n")[0]
                found = next((each for each in files if each.stem.encode() in line), files[-1])
                connection.sendall(found.read_bytes())
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass


@cache
def _http() -> _Server:
    return _Server(socket.AF_INET, ("127.0.0.1", 0))


def _asking(read: Callable[[str], object]) -> Callable[[Path], object]:
    """Reads from the server, which has the folder by then."""

    def run(folder: Path) -> object:
        server = _http()
        server.folder = folder
        return read(f"http://127.0.0.1:{server.port}")

    return run


def _answers(*answers: tuple[str, object]) -> Document:
    return Document(files={name: _HTTP + json.dumps(each).encode() for name, each in answers})


_LABELS = {
    "cluster": "c", "state": "productive", "node": "n0", "rank": "0", "attempt": "0", "phase": "forward",
    "outcome": "failed", "kind": "exception", "currency": "USD", "basis": "list", "dtype": "bf16",
    "alertname": "RankwatchRunStalled", "severity": "critical", "name": "loss", "gpu": "GPU-0", "reason": "x",
}  # fmt: skip


def _prometheus(_: Path) -> list[Document]:
    def answer(kind: str, rows: list[dict[str, object]]) -> dict[str, object]:
        return {"status": "success", "data": {"resultType": kind, "result": rows}}

    now = time.time()
    points = [[now - 600 + 60 * each, str(each)] for each in range(10)]
    vector = [{"metric": _LABELS, "value": [now, "3600"]}]
    matrix = [{"metric": _LABELS, "values": points}, {"metric": {**_LABELS, "rank": "1"}, "values": points}]
    one = _answers(("query.http", answer("vector", vector)), ("query_range.http", answer("matrix", matrix)))
    often = [{"metric": {**_LABELS, "state": each}, "value": [now, "17.5"]} for each in ("down", "data_wait")]
    steady = [{"metric": _LABELS, "values": [[now - 60 * each, "0"] for each in range(9, 0, -1)]}]
    two = _answers(("query.http", answer("vector", often)), ("query_range.http", answer("matrix", steady)))
    return [one, two]


def _alerts(_: Path) -> list[Document]:
    alert = {
        "labels": {"alertname": "RankwatchRunStalled", "run": "job", "cluster": "c", "rank": "3"},
        "annotations": {"description": "rank 3 stands", "dashboard_url": "https://g/d/1"},
        "startsAt": "2026-11-01T00:00:00Z",
        "status": {"state": "active"},
        "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
    }
    return [_answers(("alerts.http", [alert, alert]))]


def _recorder(folder: Path) -> None:
    """As the agent asks a rank: which recorders there are, then each; and once more with what is known."""
    server = _unix(folder.parent / "0.sock")
    server.folder = folder
    rank = RecordedRank(
        FlightRecorderClient(folder.parent / "0.sock", os.geteuid(), timeout_seconds=_SECONDS), max_groups=4
    )
    for moment in (1.0, 2.0):
        try:
            rank.take(moment, rank.client.ask(), ())
        except FlightRecorderError as error:
            rank.take(moment, error, ())
        series = [*rank.places(("job", "0"), moment, frozenset()), *rank.series(("job", "0"), frozenset())]
        assert all(float(each.value) >= 0 for each in series)


@cache
def _unix(path: Path) -> _Server:
    return _Server(socket.AF_UNIX, str(path))


def _recorders(_: Path) -> list[Document]:
    names = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(["ping", _NCCL, "fr_trace_json"]).encode()
    answer = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(REPLY).encode()
    return [
        Document(files={"GET.http": names, f"{_NCCL}.http": answer, "fr_trace_json.http": answer}),
        Document(
            files={"GET.http": names, f"{_NCCL}.http": answer, "fr_trace_json.http": answer},
            changed=(f"{_NCCL}.http",),
        ),
    ]


def _ras(_: Path) -> list[Document]:
    gone = Comm((5, 6, 7), gone=(Gone(3), Gone(4, dead=True)), name=0xF0)
    differing = Comm(({"AllReduce": 7, "AllGather": 2}, {"AllReduce": 9}), second="0x3:0x4")
    row = "    0         1         4         8        32        32   RUNNING  MISMATCH\n"
    counts = (
        "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
        "  30 ranks have launched up to operation 641\n  2 ranks have launched up to operation 640\n"
        "  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124\n\n"
    )
    return [
        *single(json_status(Comm((5, 5)), gone), json_status(differing, comma=False), name="json"),
        *single(
            text_status(row, "", counts),
            text_status(row, counts.replace("MISMATCH", "ERROR"), ""),
            name="text",
        ),
    ]


def _read_ras(folder: Path) -> None:
    (path,) = folder.iterdir()
    parse: Callable[[bytearray], Report] = parse_json if path.name == "json" else parse_text
    tracker = HealthTracker()
    for _ in range(2):
        report = parse(bytearray(path.read_bytes()))
        list(report_series(("localhost:28028", "job"), report, tracker.update(report), {}))


def _preemption(_: Path) -> list[Document]:
    action = {"action": "terminate", "time": "2026-11-01T00:00:00Z"}
    events = {"Events": [{"EventType": "Preempt", "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"}]}
    return [
        Document(files={"instance-action": _HTTP + json.dumps(action).encode(), "token": _HTTP + b"abc"}),
        Document(files={"scheduledevents": _HTTP + json.dumps(events).encode()}),
        Document(files={"preempted": _HTTP + b"TRUE"}),
    ]


def _ask_metadata(folder: Path) -> object:
    names = {each.name for each in folder.iterdir()}
    cloud = "aws" if "token" in names else "azure" if "scheduledevents" in names else "gcp"
    of_cloud = partial(PreemptionCollector, cloud=cloud, events=NodeEvents(), schedule=Schedule(5.0, 5.0))
    return _asking(lambda url: of_cloud(server=url).collect())(folder)


def _ask_mlflow(url: str) -> None:
    server = MlflowServer(url, headers={}, timeout_seconds=_SECONDS)
    server.log_batch("a1", tags={"x": "y"}, metrics={"goodput": 0.5}, step=3)


def _ask_dcgm(url: str) -> None:
    body = fetch(parse_endpoint(url), _SECONDS)
    answer = parse_answer(body, frozenset(each.field for each in NORMAL))
    relay(answer.samples, GpuInventory())


def _of_server(name: str, documents: Callable[[Path], list[Document]], *arguments: str) -> Reader:
    """A command whose last argument is the server's URL."""
    read = _asking(lambda url: command(*arguments, url)(Path()))
    return Reader(name, documents, read, COMMAND_REFUSES, share=2)


READERS = (
    Reader("answers of a recorder", _recorders, _recorder, share=8),
    Reader("answers of NCCL RAS", _ras, _read_ras, (CollectError,), share=8),
    _of_server("goodput from Prometheus", _prometheus, "goodput", "job", "--json", "--prometheus"),
    _of_server("report from Prometheus", _prometheus, "report", "job", "--prometheus"),
    _of_server("alerts of an Alertmanager", _alerts, "runbook", "RunStalled", "--alertmanager"),
    Reader("metadata of a cloud", _preemption, _ask_metadata, (CollectError,), share=2),
    Reader(
        "answers of MLflow",
        lambda _: [_answers(("answer", {}))],
        _asking(_ask_mlflow),
        (TrackerError,),
        share=2,
    ),
    Reader(
        "answers of dcgm-exporter",
        lambda _: [Document(files={"metrics": b"HTTP/1.0 200 OK\r\n\r\n" + exposition(*NORMAL)})],
        _asking(_ask_dcgm),
        (CollectError,),
        share=2,
    ),
)
