"""What people read in Slack, PagerDuty and mail, as a real Alertmanager sends it, and when tickets go out."""

from __future__ import annotations

import email
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.policy import default as email_policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankwatch.errors import SettingError
from rankwatch_alerts import RuleConfig, alertmanager_config, load_config
from support.servers.prometheus import alertmanager, poll, post_json

STRAGGLER = {
    "labels": {
        "alertname": "RankwatchStraggler",
        "severity": "critical",
        "page": "yes",
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
        "runbook_url": "https://wiki.test/RankwatchStraggler",
        "dashboard_url": "https://grafana.test/d/rankwatch-run-debug?var-run=llama",
    },
    "startsAt": "2026-11-23T09:30:00Z",
}
WHO = "rank 5, node gpu-17, run llama, cluster eu1"
CAUSE = "slow rank, in data loading (all: slow rank 38%, jitter 7%)"
COST = "the run takes 1.62 times as long"
RUNBOOK, DASHBOARD = "https://wiki.test/RankwatchStraggler", STRAGGLER["annotations"]["dashboard_url"]  # type: ignore[index]
DESCRIPTION = "Rank 5 needs 1.62 times as long as its peers & waits for <nobody>."
TITLE = f"[PAGE] RankwatchStraggler: {WHO}"
TEXT = f"""\
RankwatchStraggler
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
    with ExitStack() as stack:
        url, posted = stack.enter_context(_web())
        mail_address, mails = stack.enter_context(_mail())
        config = _delivering_to(tmp_path, url, mail_address)
        base = stack.enter_context(alertmanager(alertmanager_config(config), tmp_path))
        post_json(f"{base}/api/v2/alerts", [STRAGGLER])
        poll(lambda: {"/slack", "/pagerduty"} <= set(posted) and mails, 60, "three notifications")
    slack, (mail, *_) = posted["/slack"], mails
    (attachment,) = slack["attachments"]
    assert slack["channel"] == "#gpu-on-call"
    assert attachment["title"] == attachment["fallback"] == TITLE
    assert attachment["title_link"] == DASHBOARD
    assert attachment["color"] == "danger"
    assert attachment["text"] == (
        f"*RankwatchStraggler*\n*Who:* {WHO}\n*Cause:* {CAUSE}\n*Cost:* {COST}\n"
        f"<{RUNBOOK}|Runbook> | <{DASHBOARD}|Dashboard> | since 2026-11-23 09:30:00 UTC\n"
        "Rank 5 needs 1.62 times as long as its peers &amp; waits for &lt;nobody&gt;."
    )
    _check_pagerduty(posted["/pagerduty"])
    assert mail["Subject"] == TITLE
    assert mail["To"] == "gpu@example.com"
    text, html = (_body(mail, kind) for kind in ("text/plain", "text/html"))
    assert text == TEXT
    assert f"<td>{WHO}</td>" in html
    assert f'<a href="{RUNBOOK}">Runbook</a>, <a href="{DASHBOARD}">Dashboard</a>' in html
    assert "peers &amp; waits for &lt;nobody&gt;." in html


def _check_pagerduty(event: dict[str, Any]) -> None:
    assert event["routing_key"] == "secret-key"
    payload = event["payload"]
    assert payload["summary"] == TITLE
    assert payload["severity"] == "critical"
    assert (payload["class"], payload["component"], payload["group"]) == (
        "RankwatchStraggler",
        "gpu-17",
        "llama",
    )
    shown = {name: value for name, value in payload["custom_details"].items() if value}
    assert shown == {
        "who": WHO,
        "cause": CAUSE,
        "cost": COST,
        "since": "2026-11-23 09:30:00 UTC",
        "runbook": RUNBOOK,
        "dashboard": DASHBOARD,
        "alerts": TEXT,
    }
    assert event["links"] == [
        {"href": RUNBOOK, "text": "Runbook"},
        {"href": DASHBOARD, "text": "Dashboard"},
    ]
    assert event["client_url"] == DASHBOARD


@pytest.mark.process
def test_texts_of_a_group(tmp_path: Path) -> None:
    """A group of tickets is named by its run; an alert without rank, cause and slowdown is whole."""
    labels = {"alertname": "RankwatchPriceUnknown", "severity": "warning", "cluster": "eu1", "run": "llama"}
    links = {"runbook_url": "u", "dashboard_url": "d"}
    plain = {"summary": "A price is missing.", "description": "No price.", **links}
    start = {"annotations": plain, "startsAt": "2026-11-23T09:30:00Z"}
    other = {**labels, "alertname": "RankwatchDataSkew", "rank": "3"}
    with ExitStack() as stack:
        url, posted = stack.enter_context(_web())
        mail_address, _ = stack.enter_context(_mail())
        config = replace(
            _delivering_to(tmp_path, url, mail_address),
            slack_channels={"ticket": "#tickets"},
            pagerduty_routing_key_files={},
            email_to={},
        )
        base = stack.enter_context(alertmanager(alertmanager_config(config), tmp_path))
        post_json(f"{base}/api/v2/alerts", [{"labels": each, **start} for each in (labels, other)])
        # An old alert does not wait for its group, so the first message may tell of one of the two.
        poll(lambda: "DataSkew" in str(posted) and "PriceUnknown" in str(posted), 60, "both tickets")
    (attachment,) = posted["/slack"]["attachments"]
    assert attachment["title"] == "[TICKET] 2 alerts, run llama, cluster eu1"
    assert attachment["color"] == "warning"
    line = (
        "*Cost:* see the description\n<u|Runbook> | <d|Dashboard> | since 2026-11-23 09:30:00 UTC\nNo price."
    )
    assert attachment["text"] == (
        "*RankwatchPriceUnknown*\n*Who:* run llama, cluster eu1\n*Cause:* A price is missing.\n"
        f"{line}\n\n"
        f"*RankwatchDataSkew*\n*Who:* rank 3, run llama, cluster eu1\n*Cause:* A price is missing.\n{line}"
    )


@pytest.mark.process
@pytest.mark.parametrize("open_now", [True, False])
def test_tickets_wait_for_working_hours(open_now: bool, tmp_path: Path) -> None:
    """A page goes out at any hour. A ticket that is older than two pages has had its turn before them."""
    today = datetime.now(UTC)
    days = "sunday:saturday" if open_now else f"{today + timedelta(days=3):%A}".lower()
    hours = {"ticket_weekdays": days, "ticket_hours": "00:00-24:00", "ticket_time_zone": "Etc/UTC"}
    ticket, *pages = (
        {"labels": {"alertname": name, "severity": severity, "cluster": "c", "run": name}}
        for name, severity in (
            ("RankwatchJitter", "warning"),
            ("RankwatchRunStalled", "critical"),
            ("RankwatchRankLost", "critical"),
        )
    )
    with ExitStack() as stack:
        url, posted = stack.enter_context(_web())
        kinds = {kind: f"{url}/{kind}" for kind in ("page", "ticket")}
        config = replace(RuleConfig.for_demo(), webhook_urls=kinds, **hours)
        base = stack.enter_context(alertmanager(alertmanager_config(config), tmp_path))
        post_json(f"{base}/api/v2/alerts", [ticket])
        for page in pages:
            posted.pop("/page", None)
            post_json(f"{base}/api/v2/alerts", [page])
            poll(lambda: "/page" in posted, 60, "the page")
        if open_now:
            poll(lambda: "/ticket" in posted, 60, "the ticket")
        else:
            assert "/ticket" not in posted


@pytest.mark.process
def test_dead_man(tmp_path: Path) -> None:
    """The service is called again and again while the alert fires, and hears nothing of its end."""
    watchdog = {"alertname": "RankwatchWatchdog", "severity": "info", "cluster": "c"}
    with ExitStack() as stack:
        url, posted = stack.enter_context(_web())
        config = replace(RuleConfig.for_demo(), dead_man_url=f"{url}/alive")
        base = stack.enter_context(alertmanager(alertmanager_config(config), tmp_path))
        post_json(f"{base}/api/v2/alerts", [{"labels": watchdog}])
        for _ in range(3):
            poll(lambda: "/alive" in posted, 60, "a call")
            assert posted.pop("/alive")["status"] == "firing"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("owners = {RankwatchStragler = 'me'}", "names of alerts, each with an owner"),
        ("owners = {RankwatchStraggler = 'My Team'}", "names of alerts, each with an owner"),
        ("email_to = {pages = 'a@b'}", "a table with some of the receivers page, page-platform"),
        ("email_to = {page = '{{ .x }}'}", "without template braces"),
        ("ticket_weekdays = 'friday:monday'", "a range of weekdays, such as monday:friday"),
        ("ticket_hours = '18:00-08:00'", "times of one day"),
        ("ticket_hours = '8-18'", "times of one day"),
        ("ticket_time_zone = 'Berlin time'", "a time zone"),
        ("slack_channels = {page = '#x'}", "the file with the URL of Slack"),
        ("smtp_smarthost = 'mail'", "host:port"),
        ("webhook_urls = {page = 'ftp://x'}", "an http(s) URL without query for page"),
        ("dead_man_url = 'cronitor'", "an http(s) URL without query"),
        ("slack_channels = {page = 3}", "a table of strings"),
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
        'owners = {RankwatchStraggler = "hpc"}\n'
        'webhook_urls = {page = "http://all.test/", page-hpc = "http://hpc.test/"}\n'
    )
    config: Any = alertmanager_config(load_config(file))
    urls = {each["name"]: each["webhook_configs"][0]["url"] for each in config["receivers"] if len(each) > 1}
    assert urls == {
        "page": "http://all.test/",
        "page-hpc": "http://hpc.test/",
        "page-platform": "http://all.test/",
        "page-training": "http://all.test/",
    }


def _delivering_to(directory: Path, url: str, mail_address: str) -> RuleConfig:
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


def _body(mail: Any, kind: str) -> str:
    (part,) = (each for each in mail.walk() if each.get_content_type() == kind)
    return "\n".join(str(part.get_content()).strip().splitlines())


@contextmanager
def _web() -> Iterator[tuple[str, dict[str, Any]]]:
    """Takes what is posted; yields its URL, and the newest body of each path."""
    posted: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted[self.path] = body
            self.send_response(202 if self.path == "/pagerduty" else 200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"http://{address}", posted


@contextmanager
def _mail() -> Iterator[tuple[str, list[Any]]]:
    """A mail server that takes all mails; yields its address and what it has got."""
    mails: list[Any] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            for line in self.rfile:
                command = line[:4].upper()
                if command == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    mails.append(email.message_from_bytes(self._data(), policy=email_policy))
                self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 test\r\n")
                if command == b"QUIT":
                    return

        def _data(self) -> bytes:
            lines = iter(self.rfile.readline, b".\r\n")
            return b"".join(each.removeprefix(b".") if each.startswith(b"..") else each for each in lines)

    with _serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as address:
        yield address, mails


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
