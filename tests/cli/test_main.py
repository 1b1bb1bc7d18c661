"""The `rankwatch` command as a person or an init system meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch_cli.main import COMMANDS, main
from support.agent.process import agent_process, clean_environment, fetch, rankwatch


def test_a_mistake_is_one_sentence_and_status_2_without_a_traceback() -> None:
    """In the real process, from the environment."""
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
    ],
)
def test_every_wrong_command_line_is_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Abbreviated flags are wrong too."""
    try:
        status = main(arguments)
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        status = leaving.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err.startswith("rankwatch")
    assert printed.err.count("\n") == 1


@pytest.mark.e2e
def test_a_port_that_is_taken_is_told_in_one_sentence() -> None:
    """With status 2 and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = rankwatch("agent", "--listen", address)
    assert done.returncode == 2
    assert done.stderr == f"rankwatch agent: could not listen on {address}: Address already in use\n"


@pytest.mark.e2e
def test_an_address_file_that_cannot_be_written_is_told_in_one_sentence(tmp_path: Path) -> None:
    """And the agent does not stay behind half started."""
    path = tmp_path / "missing" / "address"
    done = rankwatch("agent", "--listen", "127.0.0.1:0", "--address-file", str(path), "--log-level", "error")
    assert done.returncode == 2
    assert done.stderr == f"rankwatch agent: could not write address_file {path}: No such file or directory\n"


@pytest.mark.e2e
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_agent_serves_and_ends_cleanly_on_a_signal(tmp_path: Path, how: signal.Signals) -> None:
    """Status 0, nothing but one JSON object per line in the log, no temporary file left."""
    with agent_process(tmp_path, "--log-format", "json", "--cluster", "c1") as agent:
        metrics = fetch(agent.address, "/metrics").body.decode()
        status, log = agent.stop(how)
    assert 'rankwatch_agent_info{cluster="c1",' in metrics
    assert status == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert f"serving http://{agent.address}/metrics" in messages
    assert f"stopping on {how.name}" in messages  # others may still end what they do
    assert [path.name for path in tmp_path.iterdir()] == ["address"]


_ASKED_WHILE_IMPORTING = """
import os, signal, sys
from rankwatch_cli.main import main

class Asking:
    def find_spec(self, name, path=None, target=None):
        if name == "rankwatch_cli.commands.agent":
            os.kill(os.getpid(), signal.{how})

sys.meta_path.insert(0, Asking())
sys.exit(main())
"""


@pytest.mark.parametrize("how", ["SIGUSR1", "SIGUSR2"])
def test_a_signal_for_the_driver_waits_while_the_agent_is_still_being_loaded(how: str) -> None:
    """It ends no agent that has just been started."""
    done = subprocess.run(
        [sys.executable, "-c", _ASKED_WHILE_IMPORTING.format(how=how), "agent", "--print-config"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "max_runs" in done.stdout


def test_print_config_prints_the_settings_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    """And runs nothing."""
    assert main(["agent", "--print-config", "--max-runs", "3"]) == 0
    assert "max_runs = 3  # flag --max-runs\n" in capsys.readouterr().out


def test_help_tells_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent's help lists flags with their texts; the command's lists the subcommands."""
    with pytest.raises(SystemExit) as leaving:
        main(["agent", "--help"])
    assert leaving.value.code == 0
    assert "--retention-seconds" in capsys.readouterr().out
    assert main([]) == 2
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    """`rankwatch --version`."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rankwatch ")


def test_a_missing_extra_is_named() -> None:
    """Without prometheus_client the sentence tells what to install."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from rankwatch_cli.main import main; sys.exit(main(['agent']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "rankwatch agent: could not import prometheus_client: "
        "in a clone of rankwatch, pip install '.[agent]' brings it\n"
    )


@pytest.mark.parametrize("name", ["a\nb.csv", "a\x1b[31mb.csv"])
def test_a_file_name_cannot_break_the_sentence(name: str) -> None:
    """Line breaks and escape sequences become question marks."""
    done = rankwatch("diagnose", "straggler", name)
    assert done.returncode == 2
    shown = "".join(each if each.isprintable() else "?" for each in name)
    assert done.stderr == f"rankwatch diagnose: could not read {shown}: No such file or directory\n"
    assert rankwatch("diagnose", "straggler", "x", name).stderr.count("\n") == 1


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_leaves_ends_the_command_without_a_word(buffered: bool) -> None:
    """As in `rankwatch reference metrics | head -1`, with the status of a program that SIGPIPE ended."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = written_to(nobody.fileno(), buffered=buffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_finds_no_space_is_one_sentence_and_status_2(buffered: bool) -> None:
    """And no traceback, whether at the first print or at the last flush."""
    with Path("/dev/full").open("wb") as full:
        done = written_to(full.fileno(), buffered=buffered)
    assert done.returncode == 2
    assert done.stderr == "rankwatch reference: could not write the output: No space left on device\n"


def written_to(output: int, *, buffered: bool) -> subprocess.CompletedProcess[str]:
    """`rankwatch reference metrics`, with its standard output in this file descriptor."""
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
