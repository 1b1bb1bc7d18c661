"""The real agent, and the commands of its init container, started with what the chart gives them."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme

from support.agent.process import DEADLINE_SECONDS, agent_process, fetch, until
from support.deploy.chart import MUTUAL_TLS, NAME, TOKEN, endpoint, environment, pod
from support.processes.users import ALICE, as_user, node_directory

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

PRIVILEGES = ("hostNetwork", "pods", "processes", "kernelLog")


@pytest.mark.parametrize(
    "values", [{}, {"privileges": dict.fromkeys(PRIVILEGES, True)}], ids=["default", "privileges"]
)
def test_variables_of_the_pod(values: dict[str, Any], tmp_path: Path) -> None:
    """Alive and ready without a GPU, a kubelet or a kernel log; only paths and port are those of the test."""
    variables = environment({"cluster": "lab"}, values)
    environ = {name: value.removeprefix("/host") for name, value in variables.items()}
    with agent_process(tmp_path, environ=environ) as agent:
        assert fetch(agent.address, "/healthz").status == 200
        until(lambda: fetch(agent.address, "/readyz").status == 200, "the agent is ready")
        metrics = fetch(agent.address, "/metrics").body.decode()
        status, _ = agent.stop()
    assert status == 0
    assert 'cluster="lab"' in metrics and 'node="node-1"' in metrics
    assert ('collector="ethtool"' in metrics) == bool(values)


def test_mutual_tls_and_a_token(tmp_path: Path) -> None:
    """The kubelet's probe connects and hangs up; Prometheus asks as the PodMonitor says."""
    authority = trustme.CA()
    environ = {
        name: value.removeprefix("/host").replace("/etc/rankwatch", str(tmp_path))
        for name, value in environment(MUTUAL_TLS, TOKEN).items()
    }
    write_secrets(tmp_path, authority)
    server_name = endpoint(MUTUAL_TLS, TOKEN)["tlsConfig"]["serverName"]
    client = ssl.create_default_context()
    authority.configure_trust(client)
    authority.issue_cert("prometheus").configure_cert(client)
    with agent_process(tmp_path, environ=environ) as agent:
        host, _, port = agent.address.rpartition(":")
        for _ in range(3):
            socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS).close()
        secured = client.wrap_socket(
            socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS),
            server_hostname=server_name,
        )
        with secured:
            secured.sendall(b"GET /metrics HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n")
            head = secured.recv(15)
        status, log = agent.stop()
    assert head == b"HTTP/1.0 200 OK"
    assert status == 0
    assert '"level": "error"' not in log, log


def write_secrets(folder: Path, authority: trustme.CA) -> None:
    """The files of both Secrets, where the volumes put them."""
    issued = authority.issue_cert(NAME)
    files = {
        "tls/tls.crt": issued.cert_chain_pems[0].bytes(),
        "tls/tls.key": issued.private_key_pem.bytes(),
        "tls/ca.crt": authority.cert_pem.bytes(),
        "token/token": b"secret\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def open_directories(directory: Path, *tenants: str) -> str:
    """Run the init container's commands on a directory, with its capabilities alone; what it complains of."""
    (opener,) = pod({"blackBoxes": {"tenants": list(tenants)}})["initContainers"]
    assert opener["command"][3:] == ["/dev/shm/rankwatch", *tenants]
    shell = [*opener["command"][:3], str(directory), *tenants]
    rights = as_user(0, opener["securityContext"]["capabilities"]["add"])
    done = subprocess.run([*rights, *shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def owner_and_mode(path: Path) -> tuple[int, str]:
    status = path.lstat()
    return status.st_uid, f"{status.st_mode & 0o7777:o}"


def test_directories_of_black_boxes(node_directory: Path) -> None:
    """The kubelet made them for root alone, or a trainer made them: all users may add, and root owns them.
    What is there already keeps its content."""
    node_directory.chmod(0o700)
    (node_directory / "team-b").mkdir()
    (node_directory / "team-b" / "run").mkdir(0o755)
    os.chown(node_directory, ALICE, ALICE)
    for _ in range(2):
        assert open_directories(node_directory, "team-a", "team-b") == ""
        for each in (node_directory, node_directory / "team-a", node_directory / "team-b"):
            assert owner_and_mode(each) == (0, "1777")
        assert owner_and_mode(node_directory / "team-b" / "run") == (0, "755")


def test_names_of_tenants_that_users_took(node_directory: Path) -> None:
    """A user's link or folder with the name of a tenant opens nothing, and the agent starts all the same."""
    private = node_directory.parent / "private"
    private.mkdir(mode=0o700)
    (node_directory / "linked").symlink_to(private)
    (node_directory / "taken").mkdir(0o700)
    for each in ("linked", "taken"):
        os.chown(node_directory / each, ALICE, ALICE, follow_symlinks=False)
    complaint = open_directories(node_directory, "linked", "taken", "free")
    assert complaint == "".join(f"{node_directory / each} is not root's\n" for each in ("linked", "taken"))
    assert owner_and_mode(private) == (0, "700")
    assert owner_and_mode(node_directory / "taken") == (ALICE, "700")
    assert owner_and_mode(node_directory / "free") == (0, "1777")
