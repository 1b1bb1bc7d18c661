"""The pods collector with a real gRPC server on a unix socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.pods import PodsCollector
from support.agent.process import until, values
from support.paths import TESTS
from support.servers.loopback import listening_at
from support.sources.kubelet import Kubelet, devices, kubelet, pod

FIRST = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab"
SECOND = "GPU-22222222-aaaa-bbbb-cccc-0123456789ab"
SLICE = "MIG-33333333-aaaa-bbbb-cccc-0123456789ab"
UNMATCHED = ("rankwatch_gpu_allocations_unmatched", "kubernetes")
FAILURES = ("rankwatch_attribution_failures_total", "kubernetes")
PATIENT = 20.0
"""Deadline of a collector that is to be answered, however busy the machine is, in seconds."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Kubelet]:
    with kubelet(tmp_path) as running:
        yield running


def collector(socket_path: Path, *, deadline_seconds: float = PATIENT, empty: bool = False) -> PodsCollector:
    first = GpuIdentity(FIRST, "0000:3b:00.0", 0, 0, "H100")
    second = GpuIdentity(SECOND, "0000:5e:00.0", 1, 1, "H100", (SLICE,))
    inventory = GpuInventory()
    if not empty:
        inventory.publish([first, second], exported=())
    return PodsCollector(socket=socket_path, inventory=inventory, schedule=Schedule(30.0, deadline_seconds))


def owners(*labels: str) -> tuple[str, ...]:
    return ("rankwatch_gpu_pod_info", *labels)


def test_containers_of_each_gpu(node: Kubelet) -> None:
    """Several where it is shared. Two shares of one container are one."""
    node.answer = (
        pod("train-0", devices("nvidia.com/gpu", FIRST))
        + pod("notebook", devices("nvidia.com/gpu.shared", f"{FIRST}::0", f"{FIRST}::1"))
        + pod("infer", devices("nvidia.com/mig-1g.10gb", SLICE))
    )
    assert values([collector(node.socket).collect()]) == {
        owners(FIRST, "", "team", "train-0", "main"): 1,
        owners(FIRST, "", "team", "notebook", "main"): 1,
        owners(SECOND, SLICE, "team", "infer", "main"): 1,
        UNMATCHED: 0,
        FAILURES: 0,
    }


def test_unmatched_device_is_counted(node: Kubelet) -> None:
    """The others keep their owners. Before the first GPU is known every device is unmatched."""
    node.answer = pod("a", devices("nvidia.com/gpu", "GPU-elsewhere", "nvidia9", "nvidia0"))
    found = {owners(FIRST, "", "team", "a", "main"): 1, UNMATCHED: 2, FAILURES: 0}
    assert values([collector(node.socket).collect()]) == found
    assert values([collector(node.socket, empty=True).collect()]) == {UNMATCHED: 3, FAILURES: 0}


@pytest.mark.process
def test_no_kubelet(tmp_path: Path) -> None:
    """Not applicable, and gRPC's memory is not spent."""
    with pytest.raises(NotApplicable, match="no kubelet"):
        collector(tmp_path / "none" / "kubelet.sock").collect()
    code = (
        "import sys; from pathlib import Path\n"
        "from rankwatch_agent.runtime.errors import NotApplicable\n"
        "from rankwatch_agent.sources.pods import PodsCollector\n"
        "from rankwatch_agent.sources.gpu.inventory import GpuInventory\n"
        "from rankwatch_agent.runtime.collector import Schedule\n"
        "pods = PodsCollector(socket=Path('none'), inventory=GpuInventory(), schedule=Schedule(30, 10))\n"
        "try: pods.collect()\n"
        "except NotApplicable: print('grpc' in sys.modules, 'google.protobuf' in sys.modules)\n"
    )
    assert _python(code, tmp_path) == "False False\n"


def test_kubelet_goes_and_comes(node: Kubelet) -> None:
    """Unlike one that never existed, one that is gone is a failure. A new socket is used without one."""
    pods = collector(node.socket)
    pods.collect()
    node.stop()
    with pytest.raises(CollectError, match="No such file"):
        pods.collect()
    node.start()
    assert values([pods.collect()])[FAILURES] == 1
    node.answer = pod("a", devices("nvidia.com/gpu", FIRST))
    node.restart()
    assert values([pods.collect()]) == {owners(FIRST, "", "team", "a", "main"): 1, UNMATCHED: 0, FAILURES: 1}


def test_large_answer(node: Kubelet) -> None:
    """20,000 pods take 6.7 MB, more than gRPC's default limit."""
    other = devices("example.com/dongle", *(f"device-{number:033}" for number in range(6)))
    node.answer = b"".join(pod(f"idle-{number:05}", other) for number in range(20_000))
    node.answer += pod("train-0", devices("nvidia.com/gpu", FIRST))
    assert 6.7e6 < len(node.answer) < 16e6
    assert values([collector(node.socket).collect()])[owners(FIRST, "", "team", "train-0", "main")] == 1


@pytest.mark.parametrize(
    ("how", "value", "reason"),
    [
        ("error", grpc.StatusCode.UNAVAILABLE, "unavailable: as the test wants it"),
        ("error", grpc.StatusCode.UNIMPLEMENTED, "unimplemented"),
        ("answer", b"\xff" * 100, "as a list of pod resources"),
        ("answer", b"\x00" * (17 << 20), "resource exhausted"),
        ("hang", None, "deadline exceeded"),
    ],
    ids=["unavailable", "unimplemented", "garbage", "oversized", "hanging"],
)
def test_kubelet_error(node: Kubelet, how: str, value: object, reason: str) -> None:
    pods = collector(node.socket, deadline_seconds=2.5 if how == "hang" else PATIENT)
    node.hang() if how == "hang" else setattr(node, how, value)
    with pytest.raises(CollectError, match=reason):
        pods.collect()
    assert node.calls == 1
    node.error, node.answer = None, b""
    node.restart()
    pods.deadline_seconds = PATIENT
    assert values([pods.collect()]) == {UNMATCHED: 0, FAILURES: 1}


@pytest.mark.parametrize("spoken", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 16])
def test_other_protocol(tmp_path: Path, spoken: bytes) -> None:
    """Also a server that accepts and stays silent."""
    path = tmp_path / "kubelet.sock"
    held = []
    with listening_at(path) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                with suppress(OSError):  # gRPC may have given up, at its deadline or for a new attempt
                    connection.sendall(spoken)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(CollectError, match="could not ask the kubelet"):
            collector(path, deadline_seconds=1.0).collect()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in held:
        connection.close()


def test_path_with_special_characters(tmp_path: Path) -> None:
    """gRPC targets have escapes of their own. The message about a path that is no socket holds it."""
    odd = tmp_path / "odd %41 #?.sock"
    odd.write_text("")
    with pytest.raises(CollectError, match="odd %41"):
        collector(odd).collect()
    odd.unlink()
    with kubelet(tmp_path) as running:
        odd.symlink_to(running.socket)
        assert values([collector(odd).collect()])[UNMATCHED] == 0


@pytest.mark.process
def test_nothing_stays_open_between_calls(node: Kubelet, tmp_path: Path) -> None:
    """Neither a thread nor a descriptor: an agent runs for months."""
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from rankwatch_agent.sources.pod_resources import ask_kubelet\n"
        "from rankwatch_agent.runtime.errors import CollectError\n"
        "from support.agent.process import until\n"
        "def held(): return len(os.listdir('/proc/self/fd'))\n"
        "def ask(path):\n"
        "    try: ask_kubelet(Path(path), 5.0)\n"
        "    except CollectError: pass\n"
        "ask(sys.argv[1]); before = held()\n"
        "for _ in range(20): ask(sys.argv[1]); ask('/nonexistent/kubelet.sock')\n"
        "until(lambda: len(os.listdir('/proc/self/task')) == 1, 'the threads of gRPC have ended')\n"
        "until(lambda: held() <= before, 'its descriptors are closed')\n"
    )
    assert _python(code, tmp_path, str(node.socket)) == ""


@pytest.mark.process
def test_hung_call_does_not_block_exit(node: Kubelet, tmp_path: Path) -> None:
    """It runs in a daemon thread, as in the supervisor."""
    node.hang()
    code = (
        "import sys, threading; from pathlib import Path\n"
        "from rankwatch_agent.sources.pod_resources import ask_kubelet\n"
        "threading.Thread(target=ask_kubelet, args=(Path(sys.argv[1]), 3600.0), daemon=True).start()\n"
        "sys.stdin.readline()\n"
    )
    process = _start(code, tmp_path, str(node.socket))
    try:
        until(lambda: node.calls == 1, "the call has reached the kubelet")
        _, errors = process.communicate("\n", timeout=20.0)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")


def _start(code: str, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _python(code: str, directory: Path, *arguments: str) -> str:
    """What the code prints on either stream."""
    process = _start(code, directory, *arguments)
    output, errors = process.communicate(timeout=60.0)
    assert process.returncode == 0, errors
    return output + errors
