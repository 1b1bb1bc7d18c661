"""The `rankwatch` command: errors, exit statuses, help, and the start and stop of the agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch_cli.main import commands_for, main
from support.agent.process import agent_process, clean_environment, fetch, rankwatch


@pytest.mark.process
def test_invalid_environment() -> None:
    """The error is one sentence that names the variable. There is no traceback, and the exit status is 2."""
    done = rankwatch("agent", environ={"RANKWATCH_AGENT_MAX_RUNS": "many"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rankwatch agent: could not use max_runs = 'many' from environment RANKWATCH_AGENT_MAX_RUNS: "
        "expected a whole number\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["agnet"],
        ["--verbose"],
        ["agent", "--lisen", "x"],
        ["agent", "--list", "127.0.0.1:1"],
        ["agent", "--listen"],
        ["agent", "--config", "/nonexistent/agent.toml"],
        ["agent", "extra"],
        ["demo", "--ranks", "x"],
        ["demo", "stray"],
    ],
)
def test_invalid_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence explains it, and the exit status is 2. Abbreviated flags are refused too."""
    try:
        status = main(arguments)
    except SystemExit as stopped:
        assert isinstance(stopped.code, int)
        status = stopped.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err.startswith("rankwatch")
    assert printed.err.count("\n") == 1


@pytest.mark.process
def test_port_in_use() -> None:
    """One sentence names the address, and the exit status is 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = rankwatch("agent", "--listen", address)
    assert done.returncode == 2
    assert done.stderr == f"rankwatch agent: could not listen on {address}: Address already in use\n"


@pytest.mark.process
def test_unwritable_address_file(tmp_path: Path) -> None:
    """One sentence names the file, and the agent exits with status 2 instead of running on."""
    path = tmp_path / "missing" / "address"
    done = rankwatch("agent", "--listen", "127.0.0.1:0", "--address-file", str(path), "--log-level", "error")
    assert done.returncode == 2
    assert done.stderr == f"rankwatch agent: could not write address_file {path}: No such file or directory\n"


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_agent_stops_on_signal(tmp_path: Path, how: signal.Signals) -> None:
    """The exit status is 0. Every log line is a JSON object, and no temporary file is left."""
    with agent_process(tmp_path, "--log-format", "json", "--cluster", "c1") as agent:
        metrics = fetch(agent.address, "/metrics").body.decode()
        status, log = agent.stop(how)
    assert 'rankwatch_agent_info{cluster="c1",' in metrics
    assert status == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert f"serving http://{agent.address}/metrics" in messages
    assert f"stopping on {how.name}" in messages  # other threads may log later messages
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "address",
        "state",
        "state/goodput.json",
    ]


_SIGNAL_WHILE_IMPORTING = """
import os, signal, sys
from rankwatch_cli.main import main

class SendSignal:
    def find_spec(self, name, path=None, target=None):
        if name == "rankwatch_cli.commands.agent":
            os.kill(os.getpid(), signal.{how})

sys.meta_path.insert(0, SendSignal())
sys.exit(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("how", ["SIGUSR1", "SIGUSR2"])
def test_driver_signal_during_import(how: str) -> None:
    """SIGUSR1 and SIGUSR2 must not kill an agent that is still importing its modules."""
    done = subprocess.run(
        [sys.executable, "-c", _SIGNAL_WHILE_IMPORTING.format(how=how), "agent", "--print-config"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "max_runs" in done.stdout


def test_print_config(capsys: pytest.CaptureFixture[str]) -> None:
    """The effective settings are printed with their sources, and no agent starts."""
    assert main(["agent", "--print-config", "--max-runs", "3"]) == 0
    assert "max_runs = 3  # flag --max-runs\n" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent's help lists its flags. The help of the command lists its subcommands."""
    with pytest.raises(SystemExit) as stopped:
        main(["agent", "--help"])
    assert stopped.value.code == 0
    assert "--retention-seconds" in capsys.readouterr().out
    assert main([]) == 2
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in commands_for(()))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rankwatch ")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["agent"], "prometheus_client", "agent"),
        (["agent"], "msgspec", "agent"),
        (["diagnose", "run"], "msgspec", "diagnosis"),
        (["diagnose", "straggler"], "numpy", "diagnosis"),
        (["diagnose", "straggler", "x.parquet"], "pyarrow", "diagnosis"),
        (["generate", "--output", "/dev/null/x"], "yaml", "alerts"),
        (["generate", "--output", "/dev/null/x"], "promql_parser", "alerts"),
        (["generate", "--output", "/dev/null/x"], "grafana_foundation_sdk", "dashboards"),
    ],
)
def test_missing_extra(arguments: list[str], module: str, extra: str, tmp_path: Path) -> None:
    """The error names the extra that the command is made for, before anything is written."""
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from rankwatch_cli.main import main; sys.exit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"rankwatch {arguments[0]}: could not import {module}: "
        f"in a clone of rankwatch, pip install '.[{extra}]' brings it\n"
    )


@pytest.mark.process
@pytest.mark.parametrize("buffered", [True, False])
def test_closed_pipe(buffered: bool) -> None:
    """The command ends silently with the status of SIGPIPE, as in `rankwatch reference metrics | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = written_to(nobody.fileno(), buffered=buffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.process
@pytest.mark.parametrize("buffered", [True, False])
def test_full_disk(buffered: bool) -> None:
    """One sentence, status 2 and no traceback, whether the first print or the last flush fails."""
    with Path("/dev/full").open("wb") as full:
        done = written_to(full.fileno(), buffered=buffered)
    assert done.returncode == 2
    assert done.stderr == "rankwatch reference: could not write the output: No space left on device\n"


def written_to(output: int, *, buffered: bool) -> subprocess.CompletedProcess[str]:
    """Run `rankwatch reference metrics` with this file descriptor as its standard output."""
    environ = {name: value for name, value in clean_environment().items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-m", "rankwatch_cli", "reference", "metrics"],
        env=environ if buffered else {**environ, "PYTHONUNBUFFERED": "1"},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60.0,
        check=False,
    )


@pytest.mark.process
def test_light_start() -> None:
    """`rankwatch --help` needs no extra, and little is imported before signals are blocked."""
    code = (
        "import sys\n"
        "import rankwatch_cli.main\n"
        "late = {'prometheus_client', 'torch', 'http', 'rankwatch'}\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & late)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
