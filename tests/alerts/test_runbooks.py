"""What the runbooks tell people to type."""

from __future__ import annotations

import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
from rankwatch_alerts import ALERT_NAMES
from rankwatch_alerts.label_names import in_runbook
from rankwatch_cli.main import main
from support.alerts.reasons import ALERTS
from support.alerts.runbooks import LONGEST_MEDIAN, anchors, check_runbook, commands, runbook_queries
from support.paths import ROOT
from support.recorded.runs import RUNS, Recorded

RUNBOOKS = ROOT / "runbooks"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(RUNBOOKS.glob("Rankwatch*.md"))}
README = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
SLOW = PAGES["RankwatchRunSlow"]
_TAKES_PID = re.compile(r"^ *(PID=.*)$", re.MULTILINE)
_RANKWATCH = re.compile(r"\brankwatch ([a-z]+(?: (?:run|loss|newest|verify)\b)?)([^;|#\n]*)")
"""Command and, of some, subject; then what is given to it."""
_FUNCTION = re.compile(r"^(?:ask|on_node)\(\) .*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?([A-Z][A-Z_]+)")
_ASSIGNED = re.compile(r"(?:^|[\s;])([A-Z][A-Z_]+)=")


def test_pages() -> None:
    """Each alert has one, which is checked with its reasons, and a page nobody links to goes stale."""
    assert PAGES.keys() == set(ALERT_NAMES) == ALERTS.keys()


@pytest.mark.parametrize("alert", PAGES)
def test_page(alert: str) -> None:
    """Three lines on top, a section for each reason, and queries of one cluster with a short answer."""
    assert check_runbook(alert, PAGES[alert]) == []


def test_pages_are_short() -> None:
    """Whoever is woken reads one."""
    assert statistics.median(len(text.splitlines()) for text in PAGES.values()) <= LONGEST_MEDIAN


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("## What it means", "## Meaning", "the headings are not"),
        ("# RankwatchRunSlow", "# RunSlow", "the first line is not"),
        ("\n2. ", "\n- ", "has not three numbered lines"),
        ("\n3. ", "\n\n\n\n\n3. ", "does not end within 25 lines"),
        ("](README.md#before-you-begin)", "]()", "does not say what its commands need"),
        ("### slow_stage", "### slow stage", "there is not one section slow_stage"),
        ("scalate", "tell", "nobody to escalate to is named"),
        ("\n## Verify", "\n" * 200 + "\n## Verify", "it has more than 220 lines"),
        ("run_cause:rankwatch_lost_time", "run_cause:typo", "run_cause:typo:share is not declared"),
        ("topk(5, run_cause", "topk(5, (run_cause", "does not parse"),
        ("{cluster='$CLUSTER', node='$NODE'}", "{node='$NODE'}", "is asked of all clusters"),
        ("topk(5, rankwatch_recent_data", "abs(rankwatch_recent_data", "a series for each rank"),
    ],
)
def test_wrong_page(old: str, new: str, message: str) -> None:
    """Each lint finds its mistake."""
    assert old in SLOW
    found = check_runbook("RankwatchRunSlow", SLOW.replace(old, new))
    assert any(message in each.message for each in found), found


def test_wrong_dashboard() -> None:
    """The page and the link of the alert lead to the same one."""
    text = PAGES["RankwatchRunStalled"].replace("`rankwatch-run-debug`", "`rankwatch-fleet`")
    (found,) = check_runbook("RankwatchRunStalled", text)
    assert found.message == "no dashboard is named: rankwatch-run-debug"


@pytest.mark.parametrize("alert", PAGES)
def test_sections_that_are_linked_to(alert: str) -> None:
    """They exist: a dead link at night costs minutes."""
    for page, section in anchors(PAGES[alert]):
        text = PAGES[page.removesuffix(".md")] if page else PAGES[alert]
        assert f"\n### {section}\n" in text, f"{page}#{section}"


@pytest.mark.parametrize("alert", PAGES)
def test_variables_come_from_the_top(alert: str) -> None:
    """The three lines, the table of README, or a line before: a page works alone."""
    text = commands(PAGES[alert])
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE))
    known = set(_ASSIGNED.findall(text)) | documented | {"RANKWATCH_DIR"}
    assert set(_VARIABLE.findall(text)) <= known


@pytest.mark.parametrize("alert", PAGES)
def test_commands_have_no_comments(alert: str) -> None:
    """An interactive zsh takes them for arguments."""
    assert not re.search(r"(?:^|\s)#", commands(PAGES[alert]))


@pytest.mark.parametrize("alert", PAGES)
def test_commands_exist(alert: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each `rankwatch ...` is a command, with options that it takes."""
    for words, rest in _RANKWATCH.findall(commands(PAGES[alert])):
        with pytest.raises(SystemExit, match=r"^0$"):
            main([*words.split(), "--help"])
        known = capsys.readouterr().out
        for option in re.findall(r"(?<= )--[a-z-]+", rest):
            assert option in known, f"rankwatch {words} {option}"


def test_functions_are_the_same_everywhere() -> None:
    """Lines of one page, once pasted, serve the next; a page has those that it uses."""
    ask, on_node = _FUNCTION.findall(SLOW)
    for text in PAGES.values():
        assert _FUNCTION.findall(text) == [ask, on_node][: 1 + ("on_node " in text)]


def _run(folder: Path, command: str, **variables: str) -> list[list[str]]:
    """The words of each program that the functions of a page start for a command."""
    calls = folder / "calls"
    for name in ("curl", "ssh", "srun", "kubectl"):
        fake = folder / name
        body = f'printf "%s\\0" {name} "$@" >> {shlex.quote(str(calls))}; echo >> {shlex.quote(str(calls))}\n'
        answer = 'case "$*" in *" get pod "*) echo pod/agent-x;; esac\n' if name == "kubectl" else ""
        fake.write_text(f"#!/bin/sh\n{body}{answer}")
        fake.chmod(0o755)
    script = "\n".join((*_FUNCTION.findall(SLOW), command))
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "NODE": "n 1", **variables}
    subprocess.run(["bash", "-c", script], env=env, check=True, capture_output=True)
    return [line.rstrip("\0").split("\0") for line in calls.read_text().splitlines()]


COMMAND = 'on_node rankwatch blackbox "a run" --rank 3'
TAKEN = ["rankwatch", "blackbox", "a run", "--rank", "3"]


@pytest.mark.process
@pytest.mark.parametrize("variables", [{}, {"PLATFORM": "kubernetes", "NAMESPACE": "monitoring"}])
def test_on_node_kubernetes(variables: dict[str, str], tmp_path: Path) -> None:
    """In the agent's pod of that node."""
    find, execute = _run(tmp_path, COMMAND, **variables)
    namespace = variables.get("NAMESPACE", "rankwatch")
    assert find[:5] == ["kubectl", "-n", namespace, "get", "pod"]
    assert find[-1] == "spec.nodeName=n 1"
    assert execute == ["kubectl", "-n", namespace, "exec", "pod/agent-x", "--", *TAKEN]


@pytest.mark.process
def test_on_node_kubernetes_host(tmp_path: Path) -> None:
    """What is no part of the agent's image runs in the root of the host."""
    (call,) = _run(tmp_path, "on_node dmesg -T")
    assert call[:3] == ["kubectl", "debug", "node/n 1"]
    assert call[-4:] == ["chroot", "/host", "dmesg", "-T"]


@pytest.mark.process
def test_on_node_systemd(tmp_path: Path) -> None:
    """ssh hands one line to a shell there, which must find the same words again."""
    ((program, node, line),) = _run(tmp_path, COMMAND, PLATFORM="systemd")
    assert (program, node) == ("ssh", "n 1")
    assert shlex.split(line) == ["sudo", *TAKEN]


@pytest.mark.process
def test_on_node_slurm(tmp_path: Path) -> None:
    """Beside the job on that node."""
    (call,) = _run(tmp_path, COMMAND, PLATFORM="slurm", JOB="7")
    assert call == ["srun", "--overlap", "--jobid", "7", "-w", "n 1", *TAKEN]


@pytest.mark.process
@pytest.mark.parametrize("login", ["", "--netrc"])
def test_ask(login: str, tmp_path: Path) -> None:
    """With the options that log in; labels of the alert stand in the query."""
    query = next(each for each in re.findall(r'ask "[^"]*"', SLOW) if "$RANK" in each)
    names = {"PROMETHEUS": "http://p", "CLUSTER": "eu1", "RUN": "llama", "RANK": "5", "CURL_AUTH": login}
    (call,) = _run(tmp_path, query, **names)
    url = call.index("http://p/api/v1/query")
    assert call[2:url] == ([login] if login else [])
    assert "{cluster='eu1', run='llama', rank='5'}" in call[-1]


def test_other_names_of_labels() -> None:
    """Queries take them, the words around them stay."""
    text = in_runbook(SLOW, {"cluster": "k8s_cluster", "node": "hostname"})
    assert list(runbook_queries(text)) != list(runbook_queries(SLOW))
    assert not any(re.search(r"[{,] ?(?:cluster|node)=", each) for each in runbook_queries(text))
    assert "CLUSTER=my-cluster" in text and '-w "$NODE"' in text


@pytest.mark.parametrize("each", [each for each in RUNS if each.alert], ids=lambda each: each.run)
def test_pictures_of_faults(each: Recorded) -> None:
    """A fault with a picture has it on the page of its alert, with what one sees in words."""
    assert f"](../docs/images/dashboard-run-debug-{each.run}.png)\n\nWhat you see" in PAGES[f"{each.alert}"]


@pytest.mark.process
def test_pid_command(tmp_path: Path) -> None:
    """Read from the rank's black box by the command as it is printed; there is no other way to it."""
    taken = {line for text in PAGES.values() for line in _TAKES_PID.findall(text)}
    (command,) = taken
    with rankwatch.start(directory=tmp_path, run="r", rank=0):
        names = {"RANKWATCH_DIR": str(tmp_path), "RUN": "r", "RANK": "0"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        script = f'on_node() {{ "$@"; }}\n{command}\necho "$PID"'
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env={**os.environ, **names, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == str(os.getpid())
