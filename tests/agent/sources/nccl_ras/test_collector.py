"""The NCCL RAS collector with real TCP services: which node asks, the series, services that misbehave."""

from __future__ import annotations

import logging
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from rankwatch.settings import FieldError
from rankwatch_agent.runtime.collector import Collection, Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.nccl_ras.client import ask, parse_addresses
from rankwatch_agent.sources.nccl_ras.collector import MAX_EXPORTED, MAX_RANKS, NcclRasCollector
from rankwatch_agent.sources.nccl_ras.communicators import Report
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from support.agent.process import until, values
from support.jobs.sharing_gpus import ranks_sharing_gpus, require_nccl
from support.processes.users import ALICE, BOB, become, node_directory, program_of
from support.servers.prometheus import reserved_port
from support.sources.nccl_ras import Comm, Gone, RasService, json_status, ras_service, text_status
from support.training.ranks import kill, rank

pytestmark = pytest.mark.process

__all__ = ["node_directory"]

SHORT = 0.4
"""Deadline of a collector whose service is to be given up, in seconds."""


@pytest.fixture
def service() -> Iterator[RasService]:
    with ras_service() as running:
        yield running


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[int]:
    """Process id of rank 0 of run `job`, which has two ranks."""
    with rank(tmp_path, "ready()", world=2) as process:
        yield process.pid


def collector(directory: Path, *addresses: str, deadline: float = 20.0) -> NcclRasCollector:
    return NcclRasCollector(addresses=addresses, directory=directory, schedule=Schedule(60, deadline))


def series(collection: Collection, name: str) -> dict[tuple[str, ...], float]:
    """The series of one metric by their labels."""
    return {
        key[1:]: value for key, value in values([collection]).items() if key[0] == f"rankwatch_nccl_{name}"
    }


def test_stuck_job(tmp_path: Path, service: RasService, leader: int) -> None:
    """Reported with its run. Once nothing has moved for long, the ranks behind are counted."""
    service.json = json_status(
        Comm((7, 6), first_pid=leader), Comm((3, 2), name=2, first_pid=leader, places=(1, 0))
    )
    watch = collector(tmp_path, service.address)
    for _ in range(6):
        found = watch.collect()
    assert service.commands[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"]
    at = (service.address, "job")
    assert series(found, "ras_up") == {at: 1}
    world, pair = (*at, "27a079b828ff1a75"), (*at, "0000000000000002")
    assert series(found, "communicator_state") == {(*each, "stuck", "desync"): 1 for each in (world, pair)}
    for name, (of_world, of_pair) in {
        "ranks": (2, 2),
        "launch_spread": (1, 1),
        "launches_total": (7, 3),
        "ranks_behind": (1, 1),
        "ranks_missing": (0, 0),
    }.items():
        assert series(found, f"communicator_{name}") == {world: of_world, pair: of_pair}, name


def test_global_ranks(tmp_path: Path, service: RasService) -> None:
    """By process through the communicator of all ranks, if that fits the local black boxes."""
    with rank(tmp_path, "ready()", world=3) as process:
        late = Comm((3, 2), name=2, first_pid=process.pid, places=(0, 2))
        watch = collector(tmp_path, service.address)
        for places, global_rank in (((), "2"), ((1, 0, 2), "")):
            service.json = json_status(Comm((9, 9, 9), first_pid=process.pid, places=places), late)
            for _ in range(4):
                found = watch.collect()
            key = (service.address, "job", "0000000000000002", "1", global_rank)
            assert series(found, "rank_launches_behind") == {key: 1}


def test_missing_ranks(tmp_path: Path, service: RasService, leader: int) -> None:
    """A dead process is named at the first answer."""
    service.json = json_status(Comm((7,), first_pid=leader, gone=(Gone(1, dead=True),)), comma=False)
    found = collector(tmp_path, service.address).collect()
    at = (service.address, "job")
    missing = {"dead": 1, "unresponsive": 0, "left": 0}
    assert series(found, "processes_missing") == {(*at, each): n for each, n in missing.items()}
    assert series(found, "rank_missing") == {(*at, "27a079b828ff1a75", "1", "1", "dead"): 1}


def test_text_form_of_an_old_service(tmp_path: Path, service: RasService, leader: int) -> None:
    """NCCL 2.24 to 2.28.6. What it does not report has no series."""
    service.mode = "old"
    row = "    0         8         4         1         4        32   RUNNING      OK\n"
    service.text = text_status(row)
    found = collector(tmp_path, service.address).collect()
    assert service.commands[-1] == "VERBOSE STATUS"
    at = (service.address, "job")
    assert series(found, "ras_up") == {at: 1}
    assert series(found, "communicator_state") == {}
    assert series(found, "communicator_launches_total") == {}
    assert series(found, "processes_missing") == {(*at, "dead"): 0, (*at, "unresponsive"): 0}


def test_only_the_node_of_rank_0_asks(tmp_path: Path, service: RasService) -> None:
    """One request reaches all processes of the job."""
    with pytest.raises(NotApplicable, match="no run has its rank 0 on this node"):
        collector(tmp_path, service.address).collect()
    with rank(tmp_path, "ready()", number=1, world=2), pytest.raises(NotApplicable):
        collector(tmp_path, service.address).collect()
    with rank(tmp_path, "ready()", world=2) as process:
        watch = collector(tmp_path, service.address)
        assert watch.collect().series
        kill(process)
        with pytest.raises(NotApplicable):
            watch.collect()
    assert service.commands.count("STATUS") == 1


def test_links_beside_runs(tmp_path: Path, service: RasService, leader: int) -> None:
    """A link of a user, to a name that is too long or to the run of somebody, is no run."""
    (tmp_path / "too-long").symlink_to("x" * 300)
    (tmp_path / "again").symlink_to(tmp_path / "job")
    service.json = json_status(Comm((1, 1), first_pid=leader))
    assert series(collector(tmp_path, service.address).collect(), "ras_up") == {(service.address, "job"): 1}


def test_tenant(tmp_path: Path, service: RasService) -> None:
    """The run of a tenant has the name that its other series have."""
    (tmp_path / "team-a").mkdir()
    (tmp_path / "team-a").chmod(0o777)
    with rank(tmp_path / "team-a", "ready()", run="team-a.job") as process:
        service.json = json_status(Comm((1,), first_pid=process.pid))
        found = collector(tmp_path, service.address).collect()
    assert series(found, "ras_up") == {(service.address, "team-a.job"): 1}


def test_run_by_process_ids(tmp_path: Path) -> None:
    """It stays empty where the ids do not decide."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(ras_service()) for _ in range(2))
        one = stack.enter_context(rank(tmp_path, "ready()", run="one"))
        two = stack.enter_context(rank(tmp_path, "ready()", run="two"))
        first.json = json_status(Comm((1,), first_pid=two.pid))
        second.json = json_status(Comm((1,), first_pid=one.pid))
        watch = collector(tmp_path, first.address, second.address)
        assert series(watch.collect(), "ras_up") == {(first.address, "two"): 1, (second.address, "one"): 1}
        first.json = json_status(Comm((1,), first_pid=4_000_000))
        second.mode = "old"
        assert series(watch.collect(), "ras_up") == {(first.address, ""): 1, (second.address, ""): 1}


_SERVICE = """
listening = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            if line.startswith(b"STATUS"):
                connection.sendall(arguments[0].encode())
                return
            connection.sendall(b"SERVER PROTOCOL 2\\n" if line.startswith(b"CLIENT") else b"OK\\n")
threading.Thread(target=serve, daemon=True).start()
(directory / "port").write_text(str(listening.getsockname()[1]))
done()
"""


@pytest.mark.parametrize(("user", "run"), [(ALICE, "job"), (BOB, "")])
def test_service_of_another_user(node_directory: Path, user: int, run: str) -> None:
    """A service says nothing about a run of somebody else, although process ids are known to all."""
    with rank(node_directory, "ready()", world=2, before=become(ALICE)) as process:
        dead = json_status(Comm((7,), first_pid=process.pid, gone=(Gone(1, dead=True),)))
        with program_of(user, node_directory, _SERVICE, dead.decode()):
            address = f"127.0.0.1:{(node_directory / 'port').read_text()}"
            found = collector(node_directory, address).collect()
    assert series(found, "ras_up") == {(address, run): 1}
    assert {labels[:2] for labels in series(found, "rank_missing")} == {(address, run)}


def test_nothing_listens(tmp_path: Path, leader: int) -> None:
    """RAS is switched off or in another network namespace, or no address is set."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(NotApplicable, match=f"nothing listens on 127.0.0.1:{port}"):
            collector(tmp_path, f"127.0.0.1:{port}").collect()
    with pytest.raises(NotApplicable, match="no nccl_ras_address is set"):
        collector(tmp_path).collect()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("silent", "timed out"),
        ("drip", "timed out"),
        ("stranger", "it is another service"),
        ("closes", "no answer to TIMEOUT"),
        ("huge", "more than 50331648 bytes"),
    ],
)
def test_misbehaving_service(
    tmp_path: Path,
    service: RasService,
    leader: int,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    message: str,
) -> None:
    """It is given up within the deadline, with one log line. The next good answer counts."""
    service.mode = mode
    watch = collector(tmp_path, service.address, deadline=SHORT if message == "timed out" else 20.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert values([watch.collect()]) == {("rankwatch_nccl_ras_up", service.address, ""): 0}
    assert [message in record.getMessage() for record in caplog.records] == [True]
    service.mode = "normal"
    service.json = json_status(Comm((1, 1), first_pid=leader))
    found = collector(tmp_path, service.address).collect()
    assert series(found, "ras_up") == {(service.address, "job"): 1}


def test_services_are_independent(tmp_path: Path, service: RasService, leader: int) -> None:
    """They are asked in parallel: the broken one stays silent until the other has answered."""
    with ras_service() as broken:
        broken.mode = "silent"
        service.json = json_status(Comm((1, 1), first_pid=leader))

        def let_go() -> None:
            until(lambda: "STATUS" in service.commands, "the other service is asked")
            broken.released.set()

        letting_go = threading.Thread(target=let_go)
        letting_go.start()
        found = collector(tmp_path, broken.address, service.address).collect()
        letting_go.join()
    assert series(found, "ras_up") == {(broken.address, ""): 0, (service.address, "job"): 1}
    assert series(found, "communicator_ranks")


def test_number_of_series_is_bounded(tmp_path: Path, service: RasService, leader: int) -> None:
    """The worst and largest communicators have series of their own."""
    gone = tuple(Gone(rank, dead=True) for rank in range(2, 40))
    service.json = json_status(*(Comm((1, 1), name=name, gone=gone) for name in range(300)))
    found = collector(tmp_path, service.address).collect()
    assert len(series(found, "communicator_state")) == MAX_EXPORTED
    assert len(series(found, "rank_missing")) == MAX_RANKS
    labels = [(each.metric.name, *each.labels) for each in found.series]
    assert len(labels) == len(set(labels))
    assert all(len(each.labels) == len(each.metric.labels) for each in found.series)


def test_wrong_address(tmp_path: Path) -> None:
    """Refused when the collector is created."""
    with pytest.raises(FieldError, match="nccl_ras_address"):
        collector(tmp_path, "localhost")


_REAL = """
import os, sys, torch, torch.distributed as dist
device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
given = torch.ones(1024, device=device)
while True:
    for _ in range(3):
        dist.all_reduce(given)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.gpu
def test_real_ras_service(tmp_path: Path) -> None:
    """The NCCL of the installed PyTorch: two ranks, and the launches between two answers.

    NCCL counts none in a communicator of one rank.
    """
    require_nccl()
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"  # NCCL takes it once it is free
    with ranks_sharing_gpus(("-c", _REAL), tmp_path, ranks=2, NCCL_RAS_ADDR=address) as ranks:
        await_ready(ranks)
        if not ask(parse_addresses((address,))[0], 20.0).json:
            pytest.skip("NCCL is older than 2.28.7")
        until(lambda: real_report(address).pids == {each.pid for each in ranks}, "RAS knows both ranks")
        (before,) = real_report(address).communicators
        for each in ranks:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        await_ready(ranks)
        (after,) = real_report(address).communicators
    assert before.launches is not None and after.launches is not None
    assert (after.launches - before.launches, after.size, after.missing) == (3, 2, 0)


def await_ready(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for each in ranks:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"


def real_report(address: str) -> Report:
    return parse_json(ask(parse_addresses((address,))[0], 20.0).body)
