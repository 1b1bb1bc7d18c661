"""Settings come from flags, environment, file and default, in this order, and mistakes are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rankwatch_agent.runtime.config import AgentConfig, ConfigError, load_config
from rankwatch_agent.runtime.config.fields import FIELD_NAMES
from rankwatch_agent.runtime.config.help import field_help
from rankwatch_agent.runtime.config.show import to_toml
from rankwatch_agent.runtime.errors import UserError


def write(directory: Path, text: str) -> Path:
    file = directory / "agent.toml"
    file.write_text(text)
    return file


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """And each value remembers where it came from."""
    file = write(tmp_path, 'node = "file"\ncluster = "file"\nlog_level = "error"\n')
    environ = {"RANKWATCH_AGENT_NODE": "environment", "RANKWATCH_AGENT_CLUSTER": "environment"}
    config = load_config(flags={"node": "flag"}, environ=environ, file=file)
    found = config.values
    assert (found.node, found.cluster, found.log_level) == ("flag", "environment", "error")
    assert found.listen == "0.0.0.0:9477"
    assert [config.origins[name] for name in ("node", "cluster", "log_level", "listen")] == [
        "flag --node",
        "environment RANKWATCH_AGENT_CLUSTER",
        f"file {file}",
        "default",
    ]


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """As a container's manifest does it."""
    file = write(tmp_path, "max_runs = 7\n")
    assert load_config(flags={}, environ={"RANKWATCH_AGENT_CONFIG": str(file)}).values.max_runs == 7


def test_the_directory_follows_the_variable_of_the_training_process(tmp_path: Path) -> None:
    """Unless the agent is told one of its own."""
    environ = {"RANKWATCH_DIR": "/a"}
    assert load_config(flags={}, environ=environ).values.directory == Path("/a")
    environ["RANKWATCH_AGENT_DIRECTORY"] = "/b"
    assert load_config(flags={}, environ=environ).values.directory == Path("/b")


def test_every_type_reads_from_text_and_from_toml(tmp_path: Path) -> None:
    """Lists and tables are written with commas in a flag."""
    texts = {
        "checkpoint_paths": "/a,/b",
        "intervals_seconds": "ranks=0.5,host=10",
        "disabled_collectors": "tcp",
        "retention_seconds": "60",
        "max_names": "8",
        "address_file": "/run/address",
    }
    toml = """
        checkpoint_paths = ["/a", "/b"]
        intervals_seconds = {ranks = 0.5, host = 10}
        disabled_collectors = ["tcp"]
        retention_seconds = 60
        max_names = 8
        address_file = "/run/address"
    """
    from_flags = load_config(flags=texts, environ={}).values
    assert from_flags == load_config(flags={}, environ={}, file=write(tmp_path, toml)).values
    assert from_flags.checkpoint_paths == (Path("/a"), Path("/b"))
    assert from_flags.schedule("ranks").interval_seconds == 0.5
    assert "tcp" not in from_flags.enabled_collectors()


def test_the_printed_configuration_loads_to_the_same_settings(tmp_path: Path) -> None:
    """Odd text included; each line says where its value came from."""
    flags = {
        "node": 'n"1\n\x7f\\',
        "checkpoint_paths": "/a b,/ü",
        "intervals_seconds": "ranks=1e-05",
        "address_file": "/x",
    }
    config = load_config(flags=flags, environ={})
    printed = to_toml(config)
    assert load_config(flags={}, environ={}, file=write(tmp_path, printed)).values == config.values
    assert 'listen = "0.0.0.0:9477"  # default\n' in printed
    assert "# address_file is not set  # default" in to_toml(load_config(flags={}, environ={}))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"listen": "9477"}, "listen = '9477' from flag --listen: expected HOST:PORT"),
        ({"listen": "host:70000"}, "listen"),
        ({"listen": "::1:80"}, "listen"),
        ({"max_runs": "many"}, "max_runs = 'many' from flag --max-runs: expected a whole number"),
        ({"max_requests": "0"}, "max_requests = 0 from flag --max-requests: expected a whole number of at"),
        ({"retention_seconds": "nan"}, "retention_seconds"),
        ({"retention_seconds": "-1"}, "retention_seconds"),
        (
            {"intervals_seconds": "ranks"},
            "intervals_seconds = 'ranks' from flag --intervals-seconds: expected",
        ),
        ({"intervals_seconds": "fan=1"}, "intervals_seconds"),
        ({"deadlines_seconds": "ranks=0"}, "deadlines_seconds"),
        ({"collectors": "ranks,cpu"}, "collectors"),
        ({"checkpoint_paths": "relative"}, "checkpoint_paths"),
        ({"log_level": "loud"}, "expected one of debug, info, warning, error"),
        ({"log_format": "xml"}, "expected one of text, json"),
        ({"node": ""}, "node"),
        ({"node": "x" * 10_000 + "\n", "log_format": "y"}, "log_format"),
    ],
)
def test_a_bad_value_is_named_with_its_source_and_what_was_expected(
    flags: dict[str, str], named: str
) -> None:
    """One sentence, whatever the mistake."""
    with pytest.raises(ConfigError) as caught:
        load_config(flags=flags, environ={})
    message = str(caught.value)
    assert message.startswith("could not use ")
    assert named in message
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "toml",
    [
        "lisen = 'typo'",
        "listen = 1",
        "max_runs = true",
        "max_runs = 1.5",
        "retention_seconds = 'long'",
        "checkpoint_paths = '/a'",
        "checkpoint_paths = [1]",
        "intervals_seconds = 1",
        "intervals_seconds = {ranks = 'x'}",
        'directory = "a\\u0000b"',
        "listen",
        "node = '\udcff'",
    ],
)
def test_a_bad_file_is_one_sentence_that_names_the_file(tmp_path: Path, toml: str) -> None:
    """Unknown keys and wrong types are errors; so is what is no TOML."""
    file = tmp_path / "agent.toml"
    file.write_bytes(toml.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"^could not .*agent\.toml"):
        load_config(flags={}, environ={}, file=file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or a directory."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UserError, match=f"could not read config file {path}: "):
            load_config(flags={}, environ={}, file=path)


def test_an_unknown_variable_is_an_error_unless_kubernetes_made_it() -> None:
    """A Service called rankwatch-agent puts its address into every pod of the namespace."""
    with pytest.raises(UserError, match="RANKWATCH_AGENT_LISEN"):
        load_config(flags={}, environ={"RANKWATCH_AGENT_LISEN": "x"})
    links = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_9477_TCP_ADDR")
    load_config(flags={}, environ={f"RANKWATCH_AGENT_{link}": "10.0.0.1" for link in links})


def test_every_setting_has_a_help_text() -> None:
    """The docstring under the field is the help of its flag."""
    assert (
        set(field_help(AgentConfig))
        == set(FIELD_NAMES)
        == {each.name for each in dataclasses.fields(AgentConfig)}
    )


@pytest.mark.parametrize(
    ("listen", "address"),
    [("[::]:1", ("::", 1)), ("localhost:0", ("localhost", 0)), ("1.2.3.4:9", ("1.2.3.4", 9))],
)
def test_an_address_splits_into_host_and_port(listen: str, address: tuple[str, int]) -> None:
    """Brackets around an IPv6 host are taken off."""
    assert AgentConfig(listen=listen).address() == address
