"""Ours in an Alertmanager of others: their routes, receivers and comments stay, byte for byte."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch.errors import SettingError
from rankwatch_alerts import RuleConfig
from rankwatch_alerts.alertmanager import fragments
from rankwatch_alerts.alertmanager.merging import merged
from rankwatch_alerts.generation import write_texts
from support.servers.prometheus import require

CONFIG = RuleConfig(webhook_urls={"page": "http://h/page", "ticket": "http://h/ticket"})
OURS = fragments(CONFIG)
THEIRS = """\
# Alertmanager of the platform team. Ask in #sre before you change it.
global:
  resolve_timeout: 5m

templates: ['/etc/alertmanager/*.tmpl']
route:
  receiver: default   # who has no route
  group_by: [alertname, namespace]
  routes:
    # The watchdog of the cluster.
    - matchers: [alertname="Watchdog"]
      receiver: watchdog
    - matchers: [severity="info"]
      receiver: chat
    - matchers:
        - severity="critical"
      receiver: pager
      continue: true
receivers:
- name: default
- name: watchdog   # dead man
- name: chat
- name: pager
inhibit_rules:
  - source_matchers: [severity="critical"]
    target_matchers: [severity="warning"]
    equal: [namespace, alertname]
"""
BARE = "receivers:\n- name: all\nroute:\n  receiver: all"
FORMS = {
    "theirs": THEIRS.replace("['/etc/alertmanager/*.tmpl']", "\n- /etc/alertmanager/*.tmpl"),
    "a comment that is not ours": THEIRS.replace("templates: ['/etc/alertmanager/*.tmpl']", "# rankwatch?"),
    "no lists": BARE,
    "no routes before a comment": "route:\n  # everything\n  receiver: all\nreceivers:\n  - name: all\n",
    "indented": "route:\n    routes:\n    - receiver: all\n    receiver: all\nreceivers:\n    - name: all\n",
    "nothing": f"inhibit_rules:\ntemplates: # none\n{BARE}\ntime_intervals:\n",
    "anchors": "route:\n  receiver: all\n  routes: &r\n  # one\n  - receiver: all\nreceivers:\n- name: all\n",
    "windows of theirs": f"{BARE}\ntime_intervals:\n- name: nights\n  time_intervals: []\n",
}


def _lost(notes: tuple[str, ...]) -> bool:
    return any("comments and layout are lost" in each for each in notes)


def _ours_removed(text: str) -> str:
    """Without the lines between our marks."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or line.lstrip().startswith("# begin rankwatch")
        if not inside:
            kept.append(line)
        inside = inside and line.strip() != "# end rankwatch"
    return "".join(kept)


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_theirs_stays(text: str) -> None:
    """Every byte of theirs is there, ours stand first, and a second merge changes nothing."""
    result, notes = merged(text, CONFIG)
    assert not _lost(notes)
    assert _ours_removed(result).rstrip("\n") == text.rstrip("\n")
    assert merged(result, CONFIG).text == result
    document, before = yaml.safe_load(result), yaml.safe_load(text)
    for key in ("receivers", "inhibit_rules", "time_intervals", "templates"):
        assert document[key] == [*OURS[key], *(before.get(key) or ())]
    assert document["route"]["routes"] == [*OURS["routes"], *before["route"].get("routes", ())]
    assert {**document["route"], "routes": 0} == {**before["route"], "routes": 0}


MERGED = merged(FORMS["theirs"], CONFIG).text
BEGIN = "# begin rankwatch: rankwatch generate --merge-into writes these lines anew"
END = "# end rankwatch"


@pytest.mark.parametrize("form", ["theirs", "nothing", "no lists"])
@pytest.mark.parametrize("mark", [BEGIN, END])
def test_lost_mark(form: str, mark: str) -> None:
    """Nobody knows then what is ours: whichever comment is lost, the merge names the line of the other."""
    lines = merged(FORMS[form], CONFIG).text.splitlines()
    for lost in (number for number, line in enumerate(lines) if line.strip() == mark):
        with pytest.raises(SettingError, match="has lost the other one of its pair") as caught:
            merged("\n".join((*lines[:lost], *lines[lost + 1 :])), CONFIG)
        (named,) = re.findall(r"line (\d+)", str(caught.value))
        number = int(named) - (int(named) <= lost)
        assert lines[number].strip() in (BEGIN, END)


def test_blanks_behind_marks() -> None:
    """An editor may leave them."""
    assert merged(MERGED.replace(END, f"{END}  "), CONFIG).text == MERGED


def test_theirs_between_marks() -> None:
    """A receiver of theirs among ours is not removed: the merge refuses."""
    text = MERGED.replace("- name: rankwatch-null", "- name: storage\n- name: rankwatch-null")
    with pytest.raises(SettingError, match="something of others stands between our two comments"):
        merged(text, CONFIG)


def test_new_settings() -> None:
    """A merge with other settings replaces what the one before wrote, also what is no longer wanted."""
    text = FORMS["theirs"]
    other = replace(CONFIG, owners={"RankwatchRunSlow": "hpc"}, ticket_hours="")
    again = merged(merged(text, CONFIG).text, other).text
    assert again == merged(text, other).text
    assert "rankwatch-page-hpc" in again and "rankwatch-ticket-hours" not in again


@pytest.mark.parametrize(
    "text",
    [
        THEIRS.replace("routes:", "routes: [{receiver: chat}]\n  unknown:"),
        '{"route": {"receiver": "all"}, "receivers": [{"name": "all"}]}',
        "route: {receiver: all}\nreceivers: [{name: all}]\n",
    ],
)
def test_braces(text: str) -> None:
    """Lists in brackets cannot be added to by lines: the file is written anew, and the caller can say so."""
    result, notes = merged(text, CONFIG)
    assert _lost(notes)
    assert merged(result, CONFIG).text == result and not _lost(merged(result, CONFIG).notes)
    before = yaml.safe_load(text)
    assert yaml.safe_load(result)["receivers"] == [*OURS["receivers"], *before["receivers"]]


def test_templates_in_brackets() -> None:
    """The common form: one word more in the line, once."""
    result, notes = merged(THEIRS, CONFIG)
    assert not _lost(notes)
    assert "templates: [rankwatch.tmpl, '/etc/alertmanager/*.tmpl']\n" in result
    assert _ours_removed(result).replace("rankwatch.tmpl, ", "") == THEIRS
    assert merged(result, CONFIG).text == result


def test_empty_brackets() -> None:
    result, notes = merged(f"inhibit_rules: []  # none yet\n{BARE}\n", CONFIG)
    assert not notes and "inhibit_rules:  # none yet\n" in result
    assert yaml.safe_load(result)["inhibit_rules"] == OURS["inhibit_rules"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BARE.replace("name: all", "name: rankwatch-page"), "has a receiver rankwatch-page of its own"),
        (f"{BARE}\nmute_time_intervals:\n- name: rankwatch-ticket-hours\n", "a time interval rankwatch-tick"),
        ("route: [", "the file is no YAML"),
        ("route: {receiver: all}\n", "the file has no list 'receivers', as Alertmanager wants it"),
        ("receivers: []\n", "the file has no table 'route', as Alertmanager wants it"),
        (
            "route:\n  receiver: a\nreceivers: &r\n- name: a\nothers: *r\n",
            "an anchor or alias, as in line 3: write out",
        ),
        ("", "the file is no configuration of Alertmanager"),
        (BARE.replace("- name: all", "- all"), "receivers has a form that Alertmanager does not take"),
        (f"global: x\n{BARE}", "global has a form that"),
        (f"inhibit_rules: [x]\n{BARE}", "inhibit_rules has a form that"),
        (f"inhibit_rules: [{{source_matchers: x}}]\n{BARE}", "source_matchers has a form that"),
        (f"inhibit_rules: [{{target_match: x}}]\n{BARE}", "target_match has a form that"),
        ("route: {receiver: a, routes: [{matchers: 1}]}\nreceivers: [{name: a}]\n", "matchers has a form"),
    ],
)  # fmt: skip
def test_refused(text: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence) as caught:
        merged(text, CONFIG)
    assert "\n" not in str(caught.value)


NO_URL = replace(CONFIG, slack_channels={"page": "#on-call"}, email_to={"ticket": "gpu@example.com"})
GLOBAL = (
    "global: {slack_api_url_file: /s, smtp_smarthost: m:587, smtp_from: a@b.c, smtp_require_tls: false}\n"
)


def test_their_global() -> None:
    """Receivers leave out what is not set, so that the `global` of others holds; what is set wins."""
    page, ticket = _page_and_ticket(NO_URL)
    assert "api_url_file" not in page["slack_configs"][0]
    assert not {"from", "smarthost", "require_tls"} & ticket["email_configs"][0].keys()
    page, ticket = _page_and_ticket(replace(NO_URL, slack_api_url_file="/ours", smtp_smarthost="ours:25"))
    assert page["slack_configs"][0]["api_url_file"] == "/ours"
    assert ticket["email_configs"][0]["smarthost"] == "ours:25"
    with pytest.raises(SettingError, match="channels of Slack need slack_api_url_file"):
        merged(BARE, NO_URL)


def _page_and_ticket(config: RuleConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    receivers = yaml.safe_load(merged(GLOBAL + BARE, config).text)["receivers"]
    page, ticket = (
        next(each for each in receivers if each["name"] == f"rankwatch-{kind}") for kind in ("page", "ticket")
    )
    return page, ticket


def test_nobody_hears() -> None:
    """A merge without destinations says which receivers deliver nothing, and what to set."""
    (note,) = merged(BARE, replace(CONFIG, webhook_urls={"page": "http://h/page"})).notes
    silent = "rankwatch-ticket, rankwatch-ticket-platform, rankwatch-ticket-training"
    assert note.startswith(f"nobody hears of what goes to {silent}: set one of slack_channels, ")


@pytest.mark.parametrize(
    ("rule", "sides"),
    [
        ("source_matchers: [severity=critical], target_matchers: [severity=~warning|info]", "source target"),
        ("source_match: {severity: critical}, target_match_re: {severity: warning|info}", "source target"),
        ("source_matchers: ['alertname=\"NodeDown\"'], target_matchers: ['node=~\".+\"']", "target"),
        ("source_matchers: [alertname=InfoInhibitor], target_matchers: [severity = info]", "target"),
        ("source_matchers: ['{severity=\"critical\", team!=\"db\"}'], target_matchers: [a=db]", "source"),
        ("source_matchers: [team=ml], target_matchers: [alertname=~Rank.*Slow]", "source target"),
        ("source_matchers: [team=db], target_matchers: [alertname=NodeSlow]", ""),
        ("source_matchers: [severity=critical, product!=rankwatch], target_matchers: [product=x]", ""),
    ],
)  # fmt: skip
def test_their_inhibitions(rule: str, sides: str) -> None:
    """Each that can hold for our alerts is named, with its line now and what to add to which side."""
    result, notes = merged(
        f"{BARE}\ninhibit_rules:\n- {{{rule}}}\n", replace(CONFIG, extra_labels={"team": "ml"})
    )
    asked = " and ".join(f"{side}_matchers" for side in sides.split())
    line = result.splitlines().index(f"- {{{rule}}}") + 1
    assert all(each.startswith(f"the inhibition in line {line}, of ") for each in notes)
    assert [each.partition("add ")[2] for each in notes] == [f'product!="rankwatch" to its {asked}'] * bool(
        sides
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "labels",
    [
        ["severity=info"],
        ["severity=critical"],
        ["severity=critical", "alertname=KubeNodeNotReady", "cluster=c", "run=r"],
        ["alertname=Watchdog", "severity=none"],
        ["severity=warning", "owner=platform"],
    ],
)
def test_their_alerts(labels: list[str], tmp_path: Path) -> None:
    """They go where they went; ours go to ours alone, before a route of theirs that would take them."""
    require("amtool")
    text = THEIRS.replace("/etc/alertmanager/", "")
    before, after = tmp_path / "before.yml", tmp_path / "after.yml"
    write_texts(RuleConfig(), tmp_path)
    before.write_text(text)
    after.write_text(merged(text, CONFIG).text)
    assert _receivers(after, labels) == _receivers(before, labels)
    (ours,) = _receivers(after, [*labels, "product=rankwatch"]).split(",")
    assert ours.startswith("rankwatch-")


def _receivers(config: Path, labels: list[str]) -> str:
    subprocess.run(["amtool", "check-config", str(config)], check=True, stdout=subprocess.DEVNULL)
    test = ["amtool", "config", "routes", "test", f"--config.file={config}", *labels]
    return subprocess.run(test, check=True, capture_output=True, text=True).stdout.strip()
