"""The settings of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.errors import SettingError
from rankwatch.settings import FieldError, field_help, field_names
from rankwatch_agent.runtime.config import AgentConfig, load_config


def test_sources(tmp_path: Path) -> None:
    """Flags win over the environment, the environment over the file, the file over defaults."""
    file = tmp_path / "agent.toml"
    file.write_text('node = "file"\ncluster = "file"\nlog_level = "error"\n')
    environ = {"RANKWATCH_AGENT_NODE": "environment", "RANKWATCH_AGENT_CLUSTER": "environment"}
    found = load_config(flags={"node": "flag"}, environ=environ, file=file).values
    assert (found.node, found.cluster, found.log_level) == ("flag", "environment", "error")
    assert found.listen == "0.0.0.0:9477"


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    """As the manifest of a container does. A file given as a flag wins."""
    file, other = tmp_path / "agent.toml", tmp_path / "other.toml"
    file.write_text("max_runs = 7\n")
    other.write_text("max_runs = 8\n")
    environ = {"RANKWATCH_AGENT_CONFIG": str(file)}
    assert load_config(flags={}, environ=environ).values.max_runs == 7
    assert load_config(flags={}, environ=environ, file=other).values.max_runs == 8


def test_the_directory_follows_the_training_process() -> None:
    """RANKWATCH_DIR sets it for ranks and agent alike, unless the agent has a directory of its own."""
    environ = {"RANKWATCH_DIR": "/a"}
    config = load_config(flags={}, environ=environ)
    assert config.values.directory == Path("/a")
    assert config.origins["directory"] == "environment RANKWATCH_DIR"
    environ["RANKWATCH_AGENT_DIRECTORY"] = "/b"
    assert load_config(flags={}, environ=environ).values.directory == Path("/b")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"listen": "9477"}, "listen = '9477' from flag --listen: expected HOST:PORT"),
        *(({"listen": each}, "listen") for each in ("host:70000", "::1:80")),
        ({"max_requests": "0"}, "max_requests = 0 from flag --max-requests: expected a whole number of at"),
        ({"evidence_bytes": "1000"}, "expected a whole number of at least 1048576"),
        *(({"retention_seconds": each}, "retention_seconds") for each in ("nan", "-1")),
        ({"stall_seconds": "inf"}, "expected a number of seconds above 0"),
        ({"intervals_seconds": "fan=1"}, "intervals_seconds"),
        *(({"deadlines_seconds": f"ranks={each}"}, "deadlines_seconds") for each in ("0", "nan")),
        ({"collectors": "ranks,cpu"}, "collectors"),
        ({"collectors": "tcp", "disabled_collectors": "tcp"}, "expected at least one that is not disabled"),
        ({"checkpoint_paths": "relative"}, "checkpoint_paths"),
        ({"otlp_endpoint": "collector:4318"}, "expected a URL that begins with http:// or https://"),
        ({"traces_endpoint": "http://collector:4318"}, "address, such as http://collector:4318/v1/traces"),
        ({"otlp_endpoint": "https://collector"}, "such as http://collector:4318/v1/metrics"),
        ({"traces_endpoint": "http://[::1/v1/traces"}, "expected the whole address"),
        ({"traces_endpoint": "http://a:http/v1/traces"}, "expected the whole address"),
        ({"tls_certificate": "/c"}, "tls_key = None from default: expected a key with tls_certificate"),
        ({"tls_client_ca": "/c"}, "expected tls_certificate too"),
        ({"log_level": "loud"}, "expected one of debug, info, warning, error"),
        ({"log_format": "xml"}, "expected one of text, json"),
        ({"node": ""}, "node"),
    ],
)
def test_wrong_values(flags: dict[str, str], named: str) -> None:
    with pytest.raises(FieldError) as caught:
        load_config(flags=flags, environ={})
    assert str(caught.value).startswith("could not use ")
    assert named in str(caught.value)


def test_unknown_variables() -> None:
    """They are errors unless Kubernetes made them for a Service called rankwatch-agent."""
    with pytest.raises(SettingError, match="RANKWATCH_AGENT_LISEN"):
        load_config(flags={}, environ={"RANKWATCH_AGENT_LISEN": "x"})
    links = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_9477_TCP_ADDR")
    load_config(flags={}, environ={f"RANKWATCH_AGENT_{link}": "10.0.0.1" for link in links})


def test_schedules() -> None:
    """Settings replace the interval or the deadline of a single collector."""
    flags = {"intervals_seconds": "ranks=0.5", "deadlines_seconds": "host=9", "disabled_collectors": "tcp"}
    config = load_config(flags=flags, environ={}).values
    assert config.schedule("ranks") == (0.5, 10.0)
    assert config.schedule("host") == (5.0, 9.0)
    assert "tcp" not in config.enabled_collectors()


def test_every_setting_has_a_help_text() -> None:
    assert tuple(field_help(AgentConfig)) == field_names(AgentConfig)


@pytest.mark.parametrize(
    ("listen", "address"),
    [("[::]:1", ("::", 1)), ("localhost:0", ("localhost", 0)), ("1.2.3.4:9", ("1.2.3.4", 9))],
)
def test_address(listen: str, address: tuple[str, int]) -> None:
    """The brackets around an IPv6 host are taken off."""
    assert AgentConfig(listen=listen).address() == address
