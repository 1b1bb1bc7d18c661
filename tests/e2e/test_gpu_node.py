"""A GPU node behind TLS and a token, scraped by a real Prometheus that runs the queries of the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from support.agent.process import agent_process
from support.gpu.nvml import FakeDriver, fake_driver, nvml_library
from support.gpu.nvml_node import running
from support.paths import ROOT
from support.servers.prometheus import poll, prometheus, query
from support.sources.kubelet import devices, kubelet, pod
from support.sources.node_tree import build_node
from support.training.ranks import rank

__all__ = ["fake_driver", "nvml_library"]
pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "hardware.md"
SECONDS = 120.0
TOKEN = "a-token-of-this-test"
COLLECTORS = "ranks,network,rdma,gpu,gpu_driver,xid,affinity,pods"
EACH_SECOND = ",".join(f"{name}=1" for name in COLLECTORS.split(","))


class Scraped(NamedTuple):
    """A Prometheus, and the UUIDs of the node it scrapes."""

    url: str
    uuids: list[str]


@pytest.fixture
def scraped(tmp_path: Path, fake_driver: FakeDriver) -> Iterator[Scraped]:
    """An agent with mutual TLS and a token, on 8 GPUs; the first two have a pod each."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, certificate in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("prometheus")),
    ):
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(str(tmp_path / f"{name}.pem"), append=True)
    (tmp_path / "token").write_text(TOKEN)
    tree = build_node(tmp_path / "node")
    fake_driver.update(running)
    uuids = [gpu["uuid"] for gpu in fake_driver.node["gpus"]]
    flags = {
        "--procfs": tree.procfs,
        "--sysfs": tree.sysfs,
        "--kubelet-socket": tmp_path / "kubelet.sock",
        "--collectors": COLLECTORS,
        "--intervals-seconds": EACH_SECOND,
        "--tls-certificate": tmp_path / "server.pem",
        "--tls-key": tmp_path / "server.key",
        "--tls-client-ca": tmp_path / "ca.pem",
        "--bearer-token-file": tmp_path / "token",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    with kubelet(tmp_path) as answering:
        answering.answer = b"".join(
            pod(f"trainer-{number}", devices("nvidia.com/gpu", uuid)) for number, uuid in enumerate(uuids[:2])
        )
        with (
            agent_process(tmp_path, *words, environ=fake_driver.environ) as agent,
            prometheus(_config(agent.address, tmp_path), tmp_path) as url,
        ):
            yield Scraped(url, uuids)


def _config(address: str, secrets: Path) -> dict[str, object]:
    scrape = {
        "job_name": "rankwatch",
        "scheme": "https",
        "tls_config": {
            "ca_file": str(secrets / "ca.pem"),
            "cert_file": str(secrets / "client.pem"),
            "key_file": str(secrets / "client.key"),
        },
        "authorization": {"credentials_file": str(secrets / "token")},
        "static_configs": [{"targets": [address]}],
    }
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}


def test_documented_joins(scraped: Scraped, tmp_path: Path) -> None:
    """Every query in docs/hardware.md returns series with the labels of the GPU's owner."""
    of_pods, of_ranks = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with rank(tmp_path / "blackboxes", "ready()", number=3, world=4, gpu=scraped.uuids[1]):
        by_rank = poll(lambda: query(scraped.url, of_ranks), SECONDS, "temperature by rank")
        by_pod = poll(lambda: query(scraped.url, of_pods), SECONDS, "power by pod")
    assert {_labels(each, "gpu", "run", "rank") for each in by_rank} == {(scraped.uuids[1], "job", "3")}
    assert {_labels(each, "gpu", "pod_name") for each in by_pod} == {
        (scraped.uuids[0], "trainer-0"),
        (scraped.uuids[1], "trainer-1"),
    }
    energy = "sum(rate(rankwatch_gpu_energy_joules_total[10s])) > 0"
    poll(lambda: query(scraped.url, energy), SECONDS, "energy that grows")
    poll(lambda: query(scraped.url, "up == 1"), SECONDS, "scrape that succeeds")
    assert len(query(scraped.url, "up")) == 1


def _labels(series: dict[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(series["metric"][name] for name in names)
