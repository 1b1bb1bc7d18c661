"""`rankwatch generate`: one folder that Prometheus, Alertmanager and Grafana read as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch_alerts import ALERT_NAMES, RuleConfig, load_config
from rankwatch_alerts.promql import parse, selectors
from rankwatch_alerts.rules import shipped_rules
from rankwatch_cli.main import main
from support.dashboards.lint import filled_in, targets
from support.servers.prometheus import accepted, alertmanager, get_json, poll, post_json, prometheus, require

SETTINGS = """\
label_names = {cluster = "k8s_cluster", node = "hostname"}
overrides = {RankwatchRunLate = {severity = "critical"}, RankwatchRunSlow = {labels = {tier = "2"}}}
success_objectives = {default = 0.9, nightly = 0.75}
owners = {RankwatchLossDiverging = "science"}
checkpoint_age_budget_seconds = 7200
runbook_base_url = "https://wiki.test/rw"
"""
OWN_RULES = """\
groups:
  - name: own
    rules:
      - record: a:b
        expr: up
      - alert: QueueFull
        expr: queue_length{queue='x'} > 5
        annotations: {summary: The queue is full.}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes for these settings and own rules."""
    directory = tmp_path_factory.mktemp("generated")
    (directory / "rankwatch.toml").write_text(SETTINGS)
    (directory / "own.rules.yml").write_text(OWN_RULES)
    return _generate(directory / "folder", directory / "rankwatch.toml", directory / "own.rules.yml")


def _generate(folder: Path, settings: Path, own_rules: Path, *arguments: str) -> Path:
    given = ["--config", str(settings), "--own-rules", str(own_rules), "--output", str(folder)]
    assert main(["generate", *given, *arguments]) == 0
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_settings_reach_everything(folder: Path) -> None:
    """Rules, routes, runbooks and reference come out of the same file."""
    rules = yaml.safe_load((folder / "prometheus" / "alerts.rules.yml").read_text())
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}
    assert alerts["RankwatchRunLate"]["labels"]["severity"] == "critical"
    assert alerts["RankwatchRunSlow"]["annotations"]["runbook_url"] == "https://wiki.test/rw/RankwatchRunSlow"
    assert "7200" in (folder / "prometheus" / "recording.rules.yml").read_text()
    receivers = yaml.safe_load((folder / "alertmanager" / "alertmanager.yml").read_text())["receivers"]
    assert "rankwatch-page-science" in {each["name"] for each in receivers}
    assert {path.stem for path in (folder / "runbooks").glob("*.md")} >= set(ALERT_NAMES)
    assert "nightly 0.75" in (folder / "reference" / "slis.md").read_text()
    assert "| [RankwatchLossDiverging](" in (folder / "reference" / "alerts.md").read_text()
    assert "| science |" in (folder / "reference" / "alerts.md").read_text()
    assert (
        "| `checkpoint_age_budget_seconds` | `7200` |" in (folder / "reference" / "settings.md").read_text()
    )


def test_settings_in_force_give_the_same_folder(folder: Path, tmp_path: Path) -> None:
    """The folder holds all settings it takes, Grafana is told where it sees it, and own pages stay."""
    own_page = "runbooks/QueueFull.md"
    (tmp_path / "runbooks").mkdir()
    (tmp_path / own_page).write_text("mine")
    settings, own_rules = folder / "rankwatch.toml", folder.parent / "own.rules.yml"
    again = _generate(tmp_path, settings, own_rules, "--mounted-at", str(folder))
    assert load_config(settings) == load_config(folder.parent / "rankwatch.toml")
    assert _files(again) == {**_files(folder), own_page: b"mine"}


def test_dashboards_have_the_names(folder: Path) -> None:
    """In queries, variables, legends and links; thresholds follow the settings, too."""
    for path in (folder / "grafana" / "dashboards").glob("*.json"):
        board = json.loads(path.read_text())
        for target in targets(board):
            matched = {
                name for each in selectors(parse(filled_in(target.expression))) for name in each.matched
            }
            assert not matched & {"cluster", "node"}, target.where
        text = path.read_text()
        assert "k8s_cluster" in text
        assert not re.search(r"\{\{ ?(?:cluster|node) ?\}\}|\.labels\.(?:cluster|node)\b", text), path.name
        assert not re.search(r"label_values\([^)]*, (?:cluster|node)\)", text), path.name


@pytest.mark.process
def test_prometheus(folder: Path, tmp_path: Path) -> None:
    """Loads every rule of the folder, and evaluates it: here every second, whatever its group says."""
    require("prometheus")
    rules = sorted((folder / "prometheus").glob("*.rules.yml"))
    accepted("promtool", "check", "rules", "--lint=all", "--lint-fatal", *rules)
    for file in rules:
        hurried = re.sub(r"^  interval: .*\n", "", file.read_text(), flags=re.MULTILINE)
        (tmp_path / file.name).write_text(hurried)
    config = {"global": {"evaluation_interval": "1s"}, "rule_files": [f"{tmp_path}/*.rules.yml"]}
    with prometheus(config, tmp_path) as url:

        def evaluated() -> list[dict[str, Any]]:
            groups = get_json(f"{url}/api/v1/rules")["data"]["groups"]
            found = [rule for group in groups for rule in group["rules"]]
            return found if found and all(rule["health"] != "unknown" for rule in found) else []

        found = poll(evaluated, 90, "evaluation of the rules")
        assert {rule["health"] for rule in found} == {"ok"}
        assert set(ALERT_NAMES) <= {rule["name"] for rule in found}


@pytest.mark.process
def test_alertmanager(folder: Path, tmp_path: Path) -> None:
    """Takes the folder's file, and inhibits and groups by the names that the alerts have."""
    require("prometheus-alertmanager")
    file = folder / "alertmanager" / "alertmanager.yml"
    accepted("amtool", "check-config", file)
    of_run = {"k8s_cluster": "eu1", "run": "llama"}
    ours = {"product": "rankwatch", "owner": "platform"}
    stall = {
        "alertname": "RankwatchRunStalled",
        "severity": "critical",
        "reason": "rank_known",
        **ours,
        **of_run,
    }
    slow = {"alertname": "RankwatchRunSlow", "severity": "warning", "cause": "slow_rank", **ours, **of_run}
    other = {**slow, "k8s_cluster": "us2"}
    with alertmanager(yaml.safe_load(file.read_text()), tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", [{"labels": each} for each in (stall, slow, other)])

        def states() -> dict[tuple[str, str], str]:
            return {
                (each["labels"]["alertname"], each["labels"]["k8s_cluster"]): each["status"]["state"]
                for each in get_json(f"{url}/api/v2/alerts")
            }

        # Alertmanager may call an alert active before it has read the one that holds it back.
        expected = {
            ("RankwatchRunStalled", "eu1"): "active",
            ("RankwatchRunSlow", "eu1"): "suppressed",
            ("RankwatchRunSlow", "us2"): "active",
        }
        poll(lambda: states() == expected, 30, "three alerts, one of them held back")
        groups = get_json(f"{url}/api/v2/alerts/groups")
        assert all("k8s_cluster" in each["labels"] for each in groups)


THEIRS = "# ours\nroute:\n  receiver: all\nreceivers:\n- name: all\n"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A configuration of Alertmanager that others have written."""
    file = tmp_path / "alertmanager.yml"
    file.write_text(THEIRS)
    return file


def test_merge(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into a file of others, in place, with its mode; a second time changes nothing."""
    theirs.chmod(0o640)
    settings = tmp_path.with_suffix(".toml")
    settings.write_text('webhook_urls = {page = "http://h/page", ticket = "http://h/ticket"}\n')
    arguments = ["generate", "--config", str(settings), "--merge-into", str(theirs)]
    assert main(arguments) == 0
    once = theirs.read_text()
    assert main(arguments) == 0
    assert theirs.read_text() == once
    assert once.startswith("# ours\n") and "rankwatch-page-platform" in once
    assert theirs.stat().st_mode & 0o777 == 0o640
    texts = tmp_path / "rankwatch.tmpl"
    assert sorted(tmp_path.iterdir()) == [theirs, texts]
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [str(theirs), str(texts)] * 2
    assert printed.err == f"{theirs}: tickets go out monday:friday 08:00-18:00 UTC only (ticket_hours)\n" * 2


def test_merge_keeps_the_file(tmp_path: Path) -> None:
    """Owner, group, mode, links and ends of lines stay, and Alertmanager can read the texts, too."""
    real, link = tmp_path / "real.yml", tmp_path / "etc" / "alertmanager.yml"
    real.write_bytes(THEIRS.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 0, 65534)
    link.parent.mkdir()
    link.symlink_to(real)
    before = real.stat()
    assert main(["generate", "--merge-into", str(link)]) == 0
    written = real.read_bytes()
    assert link.is_symlink() and b"rankwatch-page" in written
    assert written.count(b"\n") == written.count(b"\r\n")
    for each in (real, link.with_name("rankwatch.tmpl")):
        after = each.stat()
        kept = (before.st_mode, before.st_uid, before.st_gid)
        assert (after.st_mode, after.st_uid, after.st_gid) == kept


def test_merge_into_read_only(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever made it so did not want it changed, not even by root."""
    theirs.chmod(0o444)
    assert main(["generate", "--merge-into", str(theirs)]) == 2
    assert capsys.readouterr().err.endswith(f"could not merge into {theirs}: the file is not writable\n")
    assert [each.read_text() for each in theirs.parent.iterdir()] == [THEIRS]


def test_merge_and_output_know_the_same_alerts(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that no rule has, here because files of one's own have left it out, is refused by both."""
    settings = 'disabled_alerts = ["RankwatchRunSlow/jitter"]'
    for where in (["--merge-into", str(theirs)], ["--output", str(tmp_path / "out")]):
        assert _with_own({"slow.yaml": "groups: []"}, tmp_path, settings=settings, where=where) == 2
        assert "no rule has the name and reason RankwatchRunSlow/jitter" in capsys.readouterr().err


def test_slack_of_the_file_to_merge_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder can be written without the URL of Slack, and says which file lacks it."""
    settings = tmp_path / "rankwatch.toml"
    settings.write_text('slack_channels = {page = "#x", ticket = "#y"}\n')
    assert main(["generate", "--config", str(settings), "--output", str(tmp_path / "out")]) == 0
    assert "without slack_api_url_file Alertmanager refuses it" in capsys.readouterr().err


def test_merge_loses_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and that nobody hears of our alerts without a destination."""
    file = tmp_path / "alertmanager.yml"
    file.write_text("# ours\nroute: {receiver: all}\nreceivers: [{name: all}]\n")
    assert main(["generate", "--merge-into", str(file)]) == 0
    _, lost, silent = capsys.readouterr().err.splitlines()
    assert lost == f"{file}: route stands in brackets, so all is written anew: comments and layout are lost"
    assert silent.startswith(f"{file}: nobody hears of what goes to rankwatch-page, ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{THEIRS}- name: rankwatch-page\n", "the file has a receiver rankwatch-page of its own"),
        ("groups: []\n", "the file has no table 'route', as Alertmanager wants it"),
        ("", "the file is no configuration of Alertmanager"),
        (f"{THEIRS}#\r\n", "lines of the file end in two ways, with and without CR"),
        (None, "No such file or directory"),
    ],
)
def test_merge_refused(
    text: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, status 2, and the folder is as it was."""
    file = tmp_path / "alertmanager.yml"
    if text is not None:
        file.write_bytes(text.encode())
    assert main(["generate", "--merge-into", str(file)]) == 2
    said = capsys.readouterr().err
    assert said == f"rankwatch generate: could not merge into {file}: {sentence}\n"
    assert [each.read_bytes().decode() for each in tmp_path.iterdir()] == [text] * (text is not None)


def test_grafana_finds_the_dashboards(folder: Path) -> None:
    """The provider names a folder with dashboards; the data source is the Prometheus of the settings."""
    provisioning = folder / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "rankwatch.yml").read_text())["providers"]
    assert list(Path(provider["options"]["path"]).glob("*.json"))
    (source,) = yaml.safe_load((provisioning / "datasources" / "rankwatch.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == RuleConfig().prometheus_url


@pytest.mark.process
def test_page_for_an_own_alert(folder: Path) -> None:
    """It quotes the rule, and its command survives a shell."""
    text = (folder / "runbooks" / "QueueFull.md").read_text()
    assert text.startswith("# QueueFull\n")
    assert "The queue is full." in text
    (command,) = re.findall(r"```sh\n(.*?)\n```", text, flags=re.DOTALL)
    shown = subprocess.run(
        ["bash", "-c", f"curl() {{ printf '%s' \"$4\"; }}; {command.partition(' | ')[0]}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "query=queue_length{queue='x'} > 5"


def test_print_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings in force, every one of them, scaled; nothing is written."""
    file = tmp_path / "x.toml"
    file.write_text(SETTINGS)
    assert main(["generate", "--config", str(file), "--time-scale", "10", "--print-config"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed["checkpoint_age_budget_seconds"] == 720
    assert printed["loss_deviation"] == RuleConfig().loss_deviation
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("settings", "own_rules", "output", "message"),
    [
        ("", "", "", "--output DIR is needed"),
        ("", "", "/dev/null/x", "could not write /dev/null/x"),
        ("thresholds = 1", "", "out", "could not use key 'thresholds'"),
        ('label_names = {cluster = "run"}', "", "out", "expected labels of rankwatch, each with a new name"),
        (
            'overrides = {RankwatchRunFailed = {severity = "page"}}',
            "",
            "out",
            "a severity of critical, warning",
        ),
        ('rules_directory = "/nowhere"', "", "out", "expected an existing folder"),
        ("success_objectives = {default = 1.5}", "", "out", "shares above 0 and below 1"),
        ("step_regression = 0", "", "out", "could not use step_regression"),
        ("", "groups: [1", "out", "it is no rule file of Prometheus"),
        ("", "groups: [{rules: [{alert: ../../x, expr: up}]}]", "out", 'a page after the alert "../../x"'),
    ],
)
def test_wrong_input(
    settings: str,
    own_rules: str,
    output: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence and status 2."""
    (tmp_path / "s.toml").write_text(settings)
    arguments = ["--config", str(tmp_path / "s.toml")]
    if own_rules:
        (tmp_path / "own.yml").write_text(own_rules)
        arguments += ["--own-rules", str(tmp_path / "own.yml")]
    if output:
        arguments += ["--output", str(tmp_path / output)]
    assert main(["generate", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert error.startswith("rankwatch generate: ")


def _with_own(
    files: Mapping[str, str], tmp_path: Path, *, settings: str = "", where: Sequence[str] = ()
) -> int:
    """The exit status with these files in `rules_directory`."""
    own = tmp_path / "own"
    own.mkdir(exist_ok=True)
    for name, text in files.items():
        (own / name).write_text(text)
    (tmp_path / "s.toml").write_text(f'rules_directory = "{own}"\n{settings}')
    given = where or ("--output", str(tmp_path / "out"))
    return main(["generate", "--config", str(tmp_path / "s.toml"), *given])


def test_copy_of_all_rules(folder: Path, tmp_path: Path) -> None:
    """All rules, copied, give what is shipped; what the copy says of indicators and inhibitions holds."""
    shipped = {path.name: path.read_text() for path in shipped_rules().glob("*.yaml")}
    assert _with_own(shipped, tmp_path) == 0
    rules = Path("prometheus") / "alerts.rules.yml"
    plain = tmp_path / "plain"
    assert main(["generate", "--output", str(plain)]) == 0
    assert (tmp_path / "out" / rules).read_text() == (plain / rules).read_text()
    slis = shipped["slis.yaml"].replace("Does the run complete steps?", "Is it alive?")
    held = "[{why: w, source: ['reason=\"a\"'], target: ['reason=\"b\"']}]"
    (tmp_path / "second").mkdir()
    assert _with_own({"slis.yaml": slis, "inhibitions.yaml": held}, tmp_path / "second") == 0
    out = tmp_path / "second" / "out"
    assert "Is it alive?" in (out / "reference" / "slis.md").read_text()
    routes = yaml.safe_load((out / "alertmanager" / "alertmanager.yml").read_text())
    assert len(routes["inhibit_rules"]) == 2


_OWN = """\
groups:
- name: mine
  interval: 60
  rules:
  - alert: QueueFull
    expr: rankwatch_node_step > 5
    labels: {owner: training, severity: warning, reason: full}
    annotations: {summary: The queue is full., description: 'It is full on {{ $labels.node }}.'}
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("mine.yml", "", "", "mine.yml: files in rules_directory end in .yaml"),
        ("mine.yaml", "owner: training, ", "", "could not use mine.yaml: labels of QueueFull has no owner"),
        ("mine.yaml", "warning", "page", "severity 'page' of QueueFull is none of critical, warning, info"),
        ("mine.yaml", "full}", "2}", "label reason of QueueFull must be text"),
        ("mine.yaml", "    expr: rankwatch_node_step > 5\n", "", "QueueFull has no expr"),
        ("mine.yaml", "60", "1h", "1h gives '1h', which is no number of seconds from 0.001 on"),
        ("mine.yaml", "step >", "step > ${1 / 0} +", "QueueFull full: ${1 / 0} is no setting or sum"),
        (
            "mine.yaml",
            "step >",
            "step offset ${stall_floor - keep_firing} >",
            "${stall_floor - keep_firing} gives -240.0, which is no number of seconds from 0.001 on",
        ),
        (
            "mine.yaml",
            _OWN,
            "groups: [{name: mine, interval: 60}]",
            "could not use mine.yaml: a group has no rules",
        ),
        ("mine.yaml", _OWN, "groups: [{name: mine}, 1]", "a group has no interval"),
        ("mine.yaml", _OWN, "lookups: [a]", "could not use mine.yaml: lookups must be a table"),
        ("mine.yaml", _OWN, "- 1", "could not use mine.yaml: a file of rules must be a table"),
        ("slis.yaml", _OWN, "Steps: [{name: x}]", "could not use slis.yaml: Sli.__init__() missing"),
        (
            "slis.yaml",
            _OWN,
            "Steps: [{name: x, question: q, series: [up], figure: up, unit: u, window: w}]",
            "x names no setting by 'w'",
        ),
        ("inhibitions.yaml", _OWN, "groups: []", "could not use inhibitions.yaml: "),
        ("inhibitions.yaml", _OWN, "[{why: w, source: [a], target: []}]", "wrong matcher or severity in 'w'"),
    ],
)
@pytest.mark.parametrize("merge", [False, True], ids=["output", "merge"])
def test_wrong_own_rules(
    file: str,
    old: str,
    new: str,
    message: str,
    merge: bool,
    theirs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence that names the file or the alert, and status 2."""
    if merge and file == "slis.yaml":
        pytest.skip("no indicator stands in a configuration of Alertmanager")
    where = ["--merge-into", str(theirs)] if merge else []
    assert _with_own({file: _OWN.replace(old, new) if old else _OWN}, tmp_path, where=where) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_own_rules_as_they_should_be(tmp_path: Path) -> None:
    """What the wrong ones above are changed from."""
    assert _with_own({"mine.yaml": _OWN}, tmp_path) == 0
    assert "alert: QueueFull" in (tmp_path / "out" / "prometheus" / "alerts.rules.yml").read_text()


def test_time_that_is_too_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules halve it: one sentence names the rule."""
    assert _with_own({}, tmp_path, settings="absence_window_seconds = 0.001\n") == 2
    error = capsys.readouterr().err
    assert "${absence_window / 2} gives 0.0005, which is no number of seconds" in error
    assert len(error.splitlines()) == 1
