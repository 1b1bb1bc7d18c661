"""The agent as a whole: TLS, token, export over OTLP."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from rankwatch_agent.agent import Agent
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import UserError
from support.agent.process import DEADLINE_SECONDS, FakeCollector, fetch, load, until
from support.servers.otlp import numbers, otlp_receiver
from support.servers.receiver import Mode

LOAD = ("system.cpu.logical.count", frozenset[tuple[str, str]]())

_WITHOUT_OTLP = """
import sys
from rankwatch_agent.agent import Agent
from rankwatch_agent.runtime.config import AgentConfig
with Agent(AgentConfig(listen="127.0.0.1:0", node="n1"), []): pass
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"opentelemetry", "requests", "google"}))
"""


def test_tls_and_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The settings protect the metrics, and the log gives the address with its scheme."""
    caplog.set_level("INFO")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key, token = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "token"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    token.write_text("sesame")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    config = AgentConfig(
        listen="127.0.0.1:0", node="n1", tls_certificate=certificate, tls_key=key, bearer_token_file=token
    )
    with Agent(config, []) as agent:
        answers = {}
        for given in ("Bearer sesame", "Bearer street"):
            connection = http.client.HTTPSConnection(agent.address, context=context, timeout=DEADLINE_SECONDS)
            connection.request("GET", "/metrics", headers={"Authorization": given})
            answers[given] = connection.getresponse().status
            connection.close()
        assert f"serving https://{agent.address}/metrics" in caplog.messages
    assert answers == {"Bearer sesame": 200, "Bearer street": 401}


def test_unusable_files(tmp_path: Path) -> None:
    """The agent does not start, and the address is free again."""
    missing = tmp_path / "missing"
    host = "127.0.0.77"  # of loopback too, where nobody else is given the port meanwhile
    with socket.create_server((host, 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    for config in (
        AgentConfig(listen=address, bearer_token_file=missing),
        AgentConfig(listen=address, tls_certificate=missing, tls_key=missing),
        AgentConfig(listen=address, otlp_endpoint="http://127.0.0.1:1/v1/metrics", otlp_headers_file=missing),
    ):
        with pytest.raises(UserError, match=r"No such file or directory$"):
            Agent(config, [])
    with Agent(AgentConfig(listen=address), []) as agent:
        assert agent.address == address


def test_otlp_export() -> None:
    """The scraped metrics arrive, with the node as `host.name`."""
    collector = FakeCollector(act=lambda: load(2.5))
    with otlp_receiver() as receiver:
        config = AgentConfig(
            listen="127.0.0.1:0", node="n1", otlp_endpoint=receiver.url, otlp_interval_seconds=0.05
        )
        with Agent(config, [collector]):
            until(
                lambda: any(numbers(each.metrics()).get(LOAD) == 2.5 for each in list(receiver.exports)),
                "the load arrives",
            )
        assert receiver.exports[-1].resource()["host.name"] == "n1"


def test_hung_otlp_endpoint() -> None:
    """Neither scrapes nor the end wait for it. The batch counts as dropped only after its timeout."""
    with otlp_receiver(Mode.HANG) as receiver:
        config = AgentConfig(
            listen="127.0.0.1:0",
            node="n1",
            otlp_endpoint=receiver.url,
            otlp_interval_seconds=0.02,
            otlp_timeout_seconds=3600,
        )
        with Agent(config, [FakeCollector(act=lambda: load(2.5))]) as agent:
            receiver.wait(1)

            def metrics() -> str:
                return fetch(agent.address, "/metrics").body.decode()

            until(lambda: 'rankwatch_host_cpus{node="n1"} 2.5\n' in metrics(), "the collector has run")
            assert 'rankwatch_otlp_batches_total{node="n1",outcome="dropped"} 0.0\n' in metrics()
        assert not receiver.released.is_set()
        assert len(receiver.exports) == 1


@pytest.mark.process
def test_no_otlp_endpoint() -> None:
    """Nothing of OpenTelemetry is imported: its modules take 15 MB."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT_OTLP], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
