"""The programs with which others run our rules: several releases beside each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankwatch_alerts import to_yaml
from support.servers.prometheus import reserved_port, server

STACKS = "RANKWATCH_STACKS"
"""Environment variable: folders with programs, written as PATH is. Each is tried beside what PATH has."""
_NAMES = {"alertmanager": "prometheus-alertmanager"}
"""What Debian calls a program, by its own name."""


def installed(*names: str) -> list[Path]:
    """Every program of these names: the first on PATH, and then that of each folder of `RANKWATCH_STACKS`."""
    on_path = (shutil.which(name) for name in names)
    return [*(Path(each) for each in on_path if each), *beside_path(*names)]


def beside_path(*names: str) -> list[Path]:
    """Those of the folders alone."""
    folders = filter(None, os.environ.get(STACKS, "").split(os.pathsep))
    return [path for folder in folders for name in names if (path := Path(folder, name)).exists()]


def for_each(metafunc: pytest.Metafunc, argument: str, found: Sequence[Path]) -> None:
    """Run a test that has this argument with each of these programs; skip it if there is none."""
    if argument not in metafunc.fixturenames:
        return
    missing = pytest.mark.skip(reason=f"no program for it in a folder of {STACKS}: docs/support.md")
    programs = [pytest.param(each, id=f"{each.name}@{each.parent}") for each in found]
    metafunc.parametrize(argument, programs or [pytest.param(None, id="none", marks=missing)])


def use(program: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that looks for this program on PATH find this one, by the name that Debian gives it."""
    first = directory / "first"
    first.mkdir(exist_ok=True)
    (first / _NAMES.get(program.name, program.name)).symlink_to(program)
    path = os.environ["PATH"]
    if not path.startswith(f"{first}{os.pathsep}"):
        monkeypatch.setenv("PATH", f"{first}{os.pathsep}{path}")


class Evaluation(NamedTuple):
    """What a stack is to do: every file is one of Prometheus."""

    directory: Path
    scrapes: Mapping[str, Any]
    """Configuration of a Prometheus that scrapes, without rules."""
    rules: Sequence[Path]
    alertmanager: str
    """URL."""
    seconds: float
    """Between evaluations of groups that do not say it themselves."""
    late: float
    """Seconds after which samples are asked for, where a stack does not ask for the newest."""


@contextmanager
def evaluating(program: Path, wanted: Evaluation) -> Iterator[str]:
    """Servers around this one, which evaluates the rules; yields the URL that answers queries."""
    with ExitStack() as stack:
        yield _STACKS[program.name](stack, program, wanted)


def _prometheus(stack: ExitStack, program: Path, wanted: Evaluation) -> str:
    rules = {"rule_files": [str(each) for each in wanted.rules]}
    notified = [{"static_configs": [{"targets": [wanted.alertmanager.removeprefix("http://")]}]}]
    config = {**wanted.scrapes, **rules, "alerting": {"alertmanagers": notified}}
    return _scraping(stack, program, wanted, config)


def _scraping(stack: ExitStack, program: Path, wanted: Evaluation, config: Mapping[str, object]) -> str:
    file = wanted.directory / "prometheus.yml"
    file.write_text(to_yaml(config))
    data = wanted.directory / "prometheus-data"
    flags = (f"--config.file={file}", f"--storage.tsdb.path={data}", "--log.level=warn")
    return _start(stack, program, flags, "--web.listen-address", wanted.directory)


def _victoria(stack: ExitStack, program: Path, wanted: Evaluation) -> str:
    file = wanted.directory / "scrapes.yml"
    own = {name: value for name, value in wanted.scrapes["global"].items() if name != "evaluation_interval"}
    file.write_text(to_yaml({**wanted.scrapes, "global": own}))
    stored = (f"-promscrape.config={file}", f"-storageDataPath={wanted.directory / 'victoria-data'}")
    at_once = ("-search.latencyOffset=0s", "-inmemoryDataFlushInterval=1s")
    store = program.with_name("victoria-metrics")
    url = _start(stack, store, (*stored, *at_once), "-httpListenAddr", wanted.directory, "/health")
    remote = (f"-datasource.url={url}", f"-remoteRead.url={url}", f"-remoteWrite.url={url}")
    flags = (
        *(f"-rule={each}" for each in wanted.rules),
        *remote,
        f"-notifier.url={wanted.alertmanager}",
        f"-evaluationInterval={wanted.seconds:g}s",
        "-remoteWrite.flushInterval=200ms",
        f"-rule.evalDelay={wanted.late:g}s",
    )
    _start(stack, program, flags, "-httpListenAddr", wanted.directory, "/health")
    return url


def _thanos(stack: ExitStack, program: Path, wanted: Evaluation) -> str:
    """A sidecar beside Prometheus, a ruler, and a querier that sees both."""
    scrapes = {**wanted.scrapes, "global": {**wanted.scrapes["global"], "external_labels": {"replica": "a"}}}
    scraper = _scraping(stack, installed("prometheus")[-1], wanted, scrapes)
    ports = [stack.enter_context(reserved_port()) for _ in range(4)]
    sidecar_grpc, rule_grpc, query_grpc, query_http = (f"127.0.0.1:{each}" for each in ports)
    rule = (
        *("rule", f"--grpc-address={rule_grpc}", f"--query=http://{query_http}"),
        *(f"--rule-file={each}" for each in wanted.rules),
        f"--data-dir={wanted.directory / 'thanos-data'}",
        f"--alertmanagers.url={wanted.alertmanager}",
        f"--eval-interval={wanted.seconds:g}s",
        *('--label=replica="a"', "--alert.label-drop=replica"),
    )
    sidecar = (
        *("sidecar", f"--grpc-address={sidecar_grpc}", f"--prometheus.url={scraper}"),
        f"--tsdb.path={wanted.directory / 'prometheus-data'}",
    )
    query = (
        *("query", f"--grpc-address={query_grpc}", f"--http-address={query_http}"),
        *(f"--endpoint={each}" for each in (sidecar_grpc, rule_grpc)),
        "--query.replica-label=replica",
    )
    _start(stack, program, sidecar, "--http-address", wanted.directory)
    _start(stack, program, rule, "--http-address", wanted.directory)
    log = wanted.directory / "thanos-query.log"
    return stack.enter_context(server([str(program), *query], ports[3], log))


def _mimir(stack: ExitStack, program: Path, wanted: Evaluation) -> str:
    """One process with its usual limits, into which Prometheus writes; rules come over its API."""
    home = wanted.directory / "mimir"
    home.mkdir()
    http, grpc = (stack.enter_context(reserved_port()) for _ in range(2))
    flags = (
        *("-target=all", "-auth.multitenancy-enabled=false", "-usage-stats.enabled=false"),
        *(f"-server.{kind}-listen-address=127.0.0.1" for kind in ("http", "grpc")),
        *(f"-server.http-listen-port={http}", f"-server.grpc-listen-port={grpc}"),
        *(f"-{each}.store=inmemory" for each in _MIMIR_RINGS),
        *(f"-{each}.instance-addr=127.0.0.1" for each in (*_MIMIR_RINGS, "query-frontend")),
        *("-ingester.ring.replication-factor=1", "-ingester.ring.min-ready-duration=0s"),
        *("-blocks-storage.backend=filesystem", "-ruler-storage.filesystem.dir=rules"),
        *(f"-ruler.alertmanager-url={wanted.alertmanager}", "-ruler.poll-interval=1s"),
        f"-ruler.evaluation-interval={wanted.seconds:g}s",
        f"-ruler.max-rules-per-rule-group-by-namespace={json.dumps(dict.fromkeys(_OF_TESTS, 100))}",
    )
    command = ("env", "-C", str(home), str(program), *flags)
    url = stack.enter_context(server(command, http, home / "mimir.log", "/ready"))
    load = (str(program.with_name("mimirtool")), "rules", "load", f"--address={url}", "--id=anonymous")
    subprocess.run([*load, *map(str, wanted.rules)], check=True)
    written = {"remote_write": [{"url": f"{url}/api/v1/push"}]}
    _scraping(stack, installed("prometheus")[-1], wanted, {**wanted.scrapes, **written})
    return f"{url}/prometheus"


def _start(
    stack: ExitStack,
    program: Path,
    flags: Sequence[str],
    listen: str,
    directory: Path,
    ready: str = "/-/ready",
) -> str:
    """Start a server that lasts as long as the others; `listen` is its flag for the address."""
    port = stack.enter_context(reserved_port())
    command = (str(program), *flags, f"{listen}=127.0.0.1:{port}")
    return stack.enter_context(server(command, port, directory / f"{program.name}-{port}.log", ready))


_MIMIR_RINGS = (
    *("compactor.ring", "distributor.ring", "ingester.ring", "overrides-exporter.ring"),
    *("query-scheduler.ring", "ruler.ring", "store-gateway.sharding-ring"),
)
_STACKS: Mapping[str, Callable[[ExitStack, Path, Evaluation], str]] = {
    "prometheus": _prometheus,
    "vmalert": _victoria,
    "thanos": _thanos,
    "mimir": _mimir,
}
"""How a program that evaluates rules is started, with what it needs around it."""
_OF_TESTS = ("agents",)
"""Namespaces, as mimirtool names them by files, of rules that nobody ships; their groups may be long."""
EVALUATORS = tuple(_STACKS)
