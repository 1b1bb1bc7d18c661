"""What people read in Slack, PagerDuty and mail, as a real Alertmanager sends it, and when tickets go out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch.errors import SettingError
from rankwatch_alerts import RuleConfig, alertmanager_config, load_config
from support.servers.notified import mail_server, web_server
from support.servers.prometheus import alertmanager, poll, post_json

STRAGGLER = {
    "labels": {
        "alertname": "RankwatchRunSlow",
        "product": "rankwatch",
        "owner": "platform",
        "severity": "critical",
        "contact": "me@example.com",
        "cluster": "eu1",
        "run": "llama",
        "rank": "5",
        "node": "gpu-17",
    },
    "annotations": {
        "summary": "One rank holds up the run.",
        "description": "Rank 5 needs 1.62 times as long as its peers & waits for <nobody>.",
        "cause": "slow_rank",
        "phase": "data_loading",
        "causes": "slow_rank 38%, jitter 7%",
        "slowdown": "1.62",
        "runbook_url": "https://wiki.test/RankwatchRunSlow",
        "dashboard_url": "https://grafana.test/d/rankwatch-run-debug?var-run=llama",
    },
    "startsAt": "2026-11-23T09:30:00Z",
}
WHO = "rank 5, node gpu-17, run llama, cluster eu1"
CAUSE = "slow rank, in data loading (all: slow rank 38%, jitter 7%)"
COST = "the run takes 1.62 times as long"
RUNBOOK, DASHBOARD = "https://wiki.test/RankwatchRunSlow", STRAGGLER["annotations"]["dashboard_url"]  # type: ignore[index]
DESCRIPTION = "Rank 5 needs 1.62 times as long as its peers & waits for <nobody>."
TITLE = f"[PAGE] RankwatchRunSlow: {WHO}"
TEXT = f"""\
RankwatchRunSlow
Who: {WHO}
Cause: {CAUSE}
Cost: {COST}
Runbook: {RUNBOOK}
Dashboard: {DASHBOARD}
Since: 2026-11-23 09:30:00 UTC
{DESCRIPTION}"""


@pytest.mark.process
def test_texts(tmp_path: Path) -> None:
    """Rank, node, cause, cost, runbook and dashboard stand on top, in all three forms, to the letter."""
    posted, mails = _delivered(tmp_path, STRAGGLER)
    slack, (mail, *_) = posted["/slack"], mails
    (attachment,) = slack["attachments"]
    assert slack["channel"] == "#gpu-on-call"
    assert attachment["title"] == attachment["fallback"] == TITLE
    assert (attachment["title_link"], attachment["color"]) == (DASHBOARD, "danger")
    assert attachment["text"] == (
        f"*RankwatchRunSlow*\n*Who:* {WHO}\n*Cause:* {CAUSE}\n*Cost:* {COST}\n"
        f"<{RUNBOOK}|Runbook> | <{DASHBOARD}|Dashboard> | since 2026-11-23 09:30:00 UTC\n"
        "Rank 5 needs 1.62 times as long as its peers &amp; waits for &lt;nobody&gt;."
    )
    assert (mail["Subject"], mail["To"], _body(mail, "text/plain")) == (TITLE, "gpu@example.com", TEXT)
    html = _body(mail, "text/html")
    assert f"<td>{WHO}</td>" in html
    assert f'<a href="{RUNBOOK}">' in html and f'<a href="{DASHBOARD}">' in html
    assert "peers &amp; waits for &lt;nobody&gt;." in html
    event = posted["/pagerduty"]
    details = {name: value for name, value in event["payload"]["custom_details"].items() if value}
    assert not any(map(_yaml_makes_other, details.values()))
    assert {name: value.removeprefix("\t") for name, value in details.items()} == {
        "who": WHO,
        "cause": CAUSE,
        "cost": COST,
        "since": "2026-11-23 09:30:00 UTC",
        "runbook": RUNBOOK,
        "dashboard": DASHBOARD,
        "alerts": TEXT,
    }
    payload = {"summary": TITLE, "severity": "critical", "class": "RankwatchRunSlow", "component": "gpu-17"}
    assert event["payload"].items() >= {**payload, "group": "llama"}.items()
    links = [{"href": RUNBOOK, "text": "Runbook"}, {"href": DASHBOARD, "text": "Dashboard"}]
    assert event["links"] == links
    assert (event["client_url"], event["routing_key"]) == (DASHBOARD, "secret-key")


EVIL = "<!channel> & <https://evil.test|rank 5>"
LINK = re.compile(r"<https://(?:wiki|grafana)\.test[^<>|]*\|(?:Runbook|Dashboard)>")


@pytest.mark.process
@pytest.mark.parametrize("annotated", [True, False])
def test_hostile_texts(annotated: bool, tmp_path: Path) -> None:
    """A name or text of a user calls no channel and hides no link in Slack, and is no markup in a mail.
    PagerDuty, plain mail and webhooks have it as it is: they know no markup."""
    names = ("rank", "gpu", "device", "port", "path", "collector", "run", "cluster", "node", "reason")
    texts = ("cause", "phase", "causes", "cost", "slowdown") if annotated else ()
    urls = {"runbook_url": f"https://wiki.test/?x={EVIL}", "dashboard_url": f"https://grafana.test/?x={EVIL}"}
    alert = {
        "labels": {**STRAGGLER["labels"], **dict.fromkeys(names, EVIL)},  # type: ignore[dict-item]
        "annotations": {**dict.fromkeys(("summary", "description", *texts), EVIL), **urls},
    }
    posted, mails = _delivered(tmp_path, alert)
    (attachment,) = posted["/slack"]["attachments"]
    assert len(LINK.findall(attachment["text"])) == 2
    for name in ("title", "fallback", "text"):
        text = LINK.sub("", attachment[name])
        assert "&lt;!channel&gt; &amp; &lt;https://evil.test|rank 5&gt;" in text
        assert not re.findall(r"[<>]|&(?!amp;|lt;|gt;)", text)
    html = _body(mails[0], "text/html")
    assert "<!channel>" not in html and "&lt;!channel&gt;" in html
    assert f"run {EVIL}" in posted["/pagerduty"]["payload"]["summary"]


@contextmanager
def _notifying(
    directory: Path, config: Callable[[str, str], RuleConfig]
) -> Iterator[tuple[Callable[[list[Any]], None], dict[str, Any], list[Any]]]:
    """An Alertmanager of which `config` says where it delivers, given a URL and a mail server; yields what
    raises alerts there, what it has posted, by path, and its mails."""
    with (
        web_server() as (url, posted),
        mail_server() as (mail_address, mails),
        alertmanager(alertmanager_config(config(url, mail_address)), directory) as base,
    ):
        yield lambda alerts: post_json(f"{base}/api/v2/alerts", alerts), posted, mails


def _everywhere(directory: Path, url: str, mail_address: str) -> RuleConfig:
    slack, key = directory / "slack", directory / "key"
    slack.write_text(f"{url}/slack")
    key.write_text("secret-key")
    return replace(
        RuleConfig.for_demo(),
        slack_api_url_file=str(slack),
        slack_channels={"page": "#on-call", "page-platform": "#gpu-on-call"},
        pagerduty_routing_key_files={"page": str(key)},
        pagerduty_url=f"{url}/pagerduty",
        email_to={"page-platform": "gpu@example.com"},
        smtp_smarthost=mail_address,
        smtp_tls=False,
    )


def _delivered(directory: Path, alert: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """What a real Alertmanager posts by path, and mails, of an alert."""
    with _notifying(directory, partial(_everywhere, directory)) as (fire, posted, mails):
        fire([alert])
        poll(lambda: {"/slack", "/pagerduty"} <= set(posted) and mails, 60, "three notifications")
    return posted, mails


def _body(mail: Any, kind: str) -> str:
    (part,) = (each for each in mail.walk() if each.get_content_type() == kind)
    return "\n".join(str(part.get_content()).strip().splitlines())


def _yaml_makes_other(text: str) -> bool:
    """True if an Alertmanager that reads details as YAML sends anything but the text itself."""
    try:
        return not isinstance(yaml.safe_load(text), str)
    except yaml.YAMLError:
        return False


@pytest.mark.process
def test_texts_of_a_group(tmp_path: Path) -> None:
    """A group of tickets is named by its run; an alert without rank, cause, slowdown and links is whole."""
    ours = {"product": "rankwatch", "owner": "training", "severity": "warning"}
    labels = {"alertname": "RankwatchOverBudget", **ours, "cluster": "eu1", "run": "llama"}
    plain = {"summary": "A run costs too much.", "description": "Too much."}
    start = {"annotations": plain, "startsAt": "2026-11-23T09:30:00Z"}
    other = {**labels, "alertname": "RankwatchRunLate", "reason": "behind_plan"}

    def config(url: str, mail_address: str) -> RuleConfig:
        whole = _everywhere(tmp_path, url, mail_address)
        tickets = {"ticket": "#tickets"}
        return replace(whole, slack_channels=tickets, pagerduty_routing_key_files={}, email_to={})

    with _notifying(tmp_path, config) as (fire, posted, _):
        fire([{"labels": each, **start} for each in (labels, other)])
        # An old alert does not wait for its group, so the first message may tell of one of the two.
        poll(lambda: "RunLate" in str(posted) and "OverBudget" in str(posted), 60, "both tickets")
    (attachment,) = posted["/slack"]["attachments"]
    assert attachment["title"] == "[TICKET] 2 alerts, run llama, cluster eu1"
    assert attachment["color"] == "warning"
    line = "*Cost:* see the description\nsince 2026-11-23 09:30:00 UTC\nToo much."
    assert attachment["text"] == (
        "*RankwatchOverBudget*\n*Who:* run llama, cluster eu1\n*Cause:* A run costs too much.\n"
        f"{line}\n\n"
        f"*RankwatchRunLate*\n*Who:* run llama, cluster eu1\n*Cause:* behind plan\n{line}"
    )


@pytest.mark.process
@pytest.mark.parametrize("open_now", [True, False])
def test_tickets_wait_for_working_hours(open_now: bool, tmp_path: Path) -> None:
    """A page goes out at any hour. A ticket that is older than two pages has had its turn before them."""
    today = datetime.now(UTC)
    days = "sunday:saturday" if open_now else f"{today + timedelta(days=3):%A}".lower()
    hours = {"ticket_weekdays": days, "ticket_hours": "00:00-24:00", "ticket_time_zone": "Etc/UTC"}
    ticket, *pages = (
        {"labels": {"alertname": name, "product": "rankwatch", "severity": severity, "run": name}}
        for name, severity in (
            ("RankwatchRunLate", "warning"),
            ("RankwatchRunStalled", "critical"),
            ("RankwatchReplicasDisagree", "critical"),
        )
    )

    def config(url: str, _: str) -> RuleConfig:
        kinds = {kind: f"{url}/{kind}" for kind in ("page", "ticket")}
        return replace(RuleConfig.for_demo(), webhook_urls=kinds, **hours)

    with _notifying(tmp_path, config) as (fire, posted, _):
        fire([ticket])
        for page in pages:
            posted.pop("/page", None)
            fire([page])
            poll(lambda: "/page" in posted, 60, "the page")
        if open_now:
            poll(lambda: "/ticket" in posted, 60, "the ticket")
        else:
            assert "/ticket" not in posted


@pytest.mark.process
def test_dead_man(tmp_path: Path) -> None:
    """The service is called again and again while the alert fires, and hears nothing of its end."""
    watchdog = {"alertname": "RankwatchWatchdog", "product": "rankwatch", "severity": "info"}
    config = RuleConfig.for_demo()
    with _notifying(tmp_path, lambda url, _: replace(config, dead_man_url=f"{url}/alive")) as (
        fire,
        posted,
        _,
    ):
        fire([{"labels": watchdog}])
        for _ in range(3):
            poll(lambda: "/alive" in posted, 60, "a call")
            assert posted.pop("/alive")["status"] == "firing"


CONTACTS = ("me@example.com", "a.b+c@ml.example.org", "me@example.com.evil.org", "x@evil.org", "#channel",
            "evil@x.org,me@example.com", "{{ .x }}@example.com", "me@exampleXcom")  # fmt: skip


@pytest.mark.process
def test_contact(tmp_path: Path) -> None:
    """Who trains is mailed beside the owner, where the domain is allowed, and only of runs that name him.

    An address elsewhere, several addresses, and what only looks like an allowed one get nothing.
    """
    alerts = [
        {**STRAGGLER, "labels": {**STRAGGLER["labels"], "run": f"run-{number}", "contact": contact}}  # type: ignore[dict-item]
        for number, contact in enumerate(CONTACTS)
    ]

    def config(url: str, mail_address: str) -> RuleConfig:
        return replace(
            RuleConfig.for_demo(),
            webhook_urls={"page": f"{url}/page"},
            contact_email_domains=("example.com", "ml.example.org"),
            smtp_smarthost=mail_address,
            smtp_tls=False,
        )

    with _notifying(tmp_path, config) as (fire, posted, mails):
        fire(alerts)
        poll(lambda: len(posted.get("all /page", ())) >= len(CONTACTS), 60, "pages of all runs")
        poll(lambda: {each["To"] for each in mails} >= set(CONTACTS[:2]), 60, "two mails")
    assert {
        (each["To"], f"run run-{CONTACTS.index(each['To'])}," in str(each["Subject"])) for each in mails
    } == {(each, True) for each in CONTACTS[:2]}


@pytest.mark.parametrize("domains", [(), ("example.com",)])
def test_contact_is_off(domains: tuple[str, ...]) -> None:
    """As shipped, nobody is mailed because a user wrote an address."""
    config: Any = alertmanager_config(replace(RuleConfig(), contact_email_domains=domains))
    named = [each for each in config["receivers"] if "contact" in each["name"]]
    assert len(named) == ("contact" in str(config["route"])) == len(domains)


@pytest.mark.parametrize(
    "text",
    ["who: rank 5", "(all: slow rank 38 %)", "1.62", "yes", "null", "# no", "- a", "[a]", "{a: b}", "'x'",
     "2026-11-23", "cause: rank 3\nwho: rank 5", "|\n text", "*x", "%x", "key:\n  - 1"],
)  # fmt: skip
def test_details_are_no_yaml(text: str) -> None:
    """A newer Alertmanager sends a detail that reads as YAML as a map, a number or nothing; with the tab
    before it that every detail has, it is the text that older versions send."""
    config: Any = alertmanager_config(replace(RuleConfig(), pagerduty_routing_key_files={"page": "key"}))
    sent = [each for receiver in config["receivers"] for each in receiver.get("pagerduty_configs", ())]
    assert sent
    for each in sent:
        texts = {name: detail for name, detail in each["details"].items() if detail}
        assert {name for name, detail in texts.items() if not detail.startswith("\t")} == {
            "runbook",
            "dashboard",
        }
    assert not _yaml_makes_other(f"\t{text}")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("owners = {RankwatchRunSlow = 'My Team'}", "names of alerts, each with an owner"),
        ("email_to = {pages = 'a@b'}", "a table with some of the receivers page, page-platform"),
        ("email_to = {page = '{{ .x }}'}", "without template braces"),
        ("ticket_weekdays = 'friday:monday'", "a range of weekdays, such as monday:friday"),
        ("ticket_hours = '18:00-08:00'", "times of one day"),
        ("ticket_hours = '8-18'", "times of one day"),
        ("ticket_time_zone = 'Berlin time'", "a time zone"),
        ("smtp_smarthost = 'mail'", "host:port"),
        ("webhook_urls = {page = 'ftp://x'}", "an http(s) URL without query for page"),
        ("dead_man_url = 'cronitor'", "an http(s) URL without query"),
        ("slack_channels = {page = 3}", "a table of strings"),
        ("contact_email_domains = ['*']", "domains, such as example.com"),
        ("contact_email_domains = ['x.com|.*']", "domains, such as example.com"),
        ("contact_slack_channels = ['me@example.com']", "channels of Slack"),
        ("ticket_repeat_interval_seconds = 0", "a number of seconds from 1"),
        ("notification_secret = 'My Secret'", "a name of Kubernetes"),
    ],
)
def test_wrong_destination(line: str, sentence: str, tmp_path: Path) -> None:
    """One sentence, where Alertmanager would refuse the file or never deliver."""
    file = tmp_path / "rules.toml"
    file.write_text(f"{line}\n")
    with pytest.raises(SettingError) as caught:
        load_config(file)
    assert sentence in str(caught.value)


def test_owner_of_ones_own(tmp_path: Path) -> None:
    """A new owner has receivers, and those that name none fall back on the common one."""
    file = tmp_path / "rules.toml"
    file.write_text(
        'owners = {RankwatchRunSlow = "hpc"}\n'
        'webhook_urls = {page = "http://all.test/", page-hpc = "http://hpc.test/"}\n'
    )
    config: Any = alertmanager_config(load_config(file))
    urls = {each["name"]: each["webhook_configs"][0]["url"] for each in config["receivers"] if len(each) > 1}
    assert urls == {
        "rankwatch-page": "http://all.test/",
        "rankwatch-page-hpc": "http://hpc.test/",
        "rankwatch-page-platform": "http://all.test/",
        "rankwatch-page-training": "http://all.test/",
    }
