"""`rankwatch goodput`: from a real Prometheus, and what it says where it cannot ask one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.goodput import main
from rankwatch_cli.commands.report import main as report
from support.servers.loopback import serving
from support.servers.prometheus import backfill, prometheus

MINUTE = 60.0
LONG = 150
"""Minutes of an attempt, of which the last five are down."""
ATTEMPTS = 4


def _history(end: float) -> Iterator[str]:
    """Four attempts of 150 minutes on two nodes; n1 is gone before the last. In the form of OpenMetrics."""
    start = end - ATTEMPTS * LONG * MINUTE
    series: dict[str, list[tuple[float, float]]] = {}

    def add(name: str, labels: str, at: float, value: float) -> None:
        series.setdefault(f'{name}{{cluster="c",run="r",{labels}}}', []).append((at, value))

    for minute in range(ATTEMPTS * LONG + 1):
        at, attempt = start + minute * MINUTE, min(minute // LONG, ATTEMPTS - 1)
        down = sum(each % LONG >= LONG - 5 for each in range(minute))
        for node in ("n0", "n1"):
            if node == "n1" and attempt == ATTEMPTS - 1:
                continue
            here = f'node="{node}"'
            for state, seconds in {"productive": 210.0, "straggler": 20.0, "data": 10.0}.items():
                value = (minute - down) * seconds
                add("rankwatch_goodput_seconds_total", f'{here},state="{state}"', at, value)
            add("rankwatch_goodput_seconds_total", f'{here},state="down"', at, down * 240.0)
            add("rankwatch_run_attempt", here, at, attempt)
            add("rankwatch_run_world_size", here, at, 8)
            began = start + attempt * LONG * MINUTE
            add("rankwatch_run_attempt_start_timestamp_seconds", here, at, began)
        if attempt:
            ended = f'node="n0",attempt="{attempt - 1}",outcome="failed",kind="crash"'
            add(
                "rankwatch_run_attempt_end_timestamp_seconds",
                ended,
                at,
                start + (attempt * LONG - 5) * MINUTE,
            )
            add("rankwatch_run_spent", f'{here},currency="EUR",basis="list"', at, 0.5 * (minute - down))
        saves = 'node="n0",rank="0",operation="save"'
        add("rankwatch_checkpoint_operations_total", f'{saves},outcome="success"', at, minute // 30)
        add("rankwatch_checkpoint_blocking_seconds_total", saves, at, 12.0 * (minute // 30))
        add("rankwatch_checkpoint_operation_seconds_total", saves, at, 60.0 * (minute // 30))
    for name, points in series.items():
        yield from (f"{name} {value!r} {at:.3f}" for at, value in points)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with ten hours of history."""
    directory = tmp_path_factory.mktemp("p")
    backfill(_history(time.time() - 30), directory)
    with prometheus({"global": {"scrape_interval": "1h"}}, directory) as found:
        yield found


@pytest.mark.process
def test_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums hold nodes that are gone; attempts come with their ends; the interval has its advice."""
    assert main(["r", "--prometheus", url, "--since", "1d", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    up, down = ATTEMPTS * (LONG - 5), ATTEMPTS * 5
    gone_up, gone_down = up * 3 / 4, down * 3 / 4
    seconds = found["rank_seconds"]
    assert seconds["productive"] == pytest.approx(210 * (up + gone_up), rel=0.01)
    assert seconds["down"] == pytest.approx(240 * (down + gone_down), rel=0.05)
    assert found["goodput"]["scheduling"] == pytest.approx(145 / 150, rel=0.01)
    assert found["goodput"]["ettr"] == pytest.approx(210 / 240 * 145 / 150, rel=0.01)
    assert found["goodput"]["flops_utilisation"] is None
    (money,) = found["costs"]
    assert money["total"] == pytest.approx(0.5 * (up + gone_up), rel=0.01)
    assert money["by_state"]["straggler"] == pytest.approx(money["total"] * 20 / 240)
    attempts = found["attempts"]
    assert [each["number"] for each in attempts] == [0, 1, 2, 3]
    assert [each["ended_how"] for each in attempts] == ["failed: crash"] * 3 + [""]
    assert [each["running"] for each in attempts] == [False] * 3 + [True]
    for each in attempts[:3]:
        assert each["ended"] - each["started"] == pytest.approx((LONG - 5) * MINUTE)
        assert each["world_size"] == 8
    advice = found["checkpoint_interval"]
    assert advice["interruptions"] == 3
    assert advice["blocking_seconds"] == pytest.approx(12.0, rel=0.05)
    assert advice["present_seconds"] == pytest.approx(29 * MINUTE, rel=0.05)
    assert advice["best_seconds"] == pytest.approx((2 * 12 * 200 * MINUTE) ** 0.5, rel=0.05)
    assert {each["change"] for each in found["what_if"]} == {"straggler_removed", "restarts_halved"}


@pytest.mark.process
def test_text_and_page(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for people; the page needs nothing from anywhere."""
    page = tmp_path / "r.html"
    assert main(["r", "--prometheus", url, "--since", "1d", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    for words in (
        "run r: 84.7% of",
        "scheduling 96.8%",
        "EUR (list)",
        "failed: crash",
        "no straggler",
    ):
        assert words in printed
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "").replace(url, "")
    assert text.count('<rect class="attempt') == ATTEMPTS


@pytest.mark.process
def test_unknown_run(url: str) -> None:
    """A name that is a matcher in disguise is only a name."""
    with pytest.raises(UserError, match="has no goodput of a run"):
        main(['r"} or vector(1) #', "--prometheus", url])


class _Server(BaseHTTPRequestHandler):
    status, body, headers_sent, seconds, pause = 200, b"", (), 0.0, 0.0
    asked: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        cls = type(self)
        cls.asked.append(self.headers["Authorization"])
        time.sleep(cls.seconds)
        self.send_response(cls.status)
        for name, value in cls.headers_sent:
            self.send_header(name, value)
        self.end_headers()
        if not cls.pause:
            self.wfile.write(cls.body)
            return
        with suppress(OSError):  # the client has gone
            for each in cls.body:
                self.wfile.write(bytes([each]))
                time.sleep(cls.pause)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Quiet."""


@contextmanager
def _serving(**answer: object) -> Iterator[tuple[str, list[str | None]]]:
    handler = type("Handler", (_Server,), {**answer, "asked": []})
    with serving(HTTPServer(("127.0.0.1", 0), handler)) as address:
        yield address, handler.asked  # type: ignore[attr-defined]


_ODD_SERIES = (
    *({"metric": {"state": "down"}, "value": each} for each in (5, [], [1], [1, "x"], [1, []], ["x", "1"])),
    *({"metric": {"state": "down"}, "value": [at, "1"]} for at in (10**400, -1, "NaN")),
    *({"metric": each, "value": [1, "1"]} for each in (None, [], {"state": 5})),
)


def _vector(series: object) -> bytes:
    return json.dumps({"status": "success", "data": {"result": [series]}}).encode()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"status": 401}, "it asks for credentials"),
        ({"status": 403}, "it refuses these credentials"),
        ({"status": 404}, "there is no Prometheus API below this URL"),
        ({"status": 302, "headers_sent": (("Location", "https://login.example"),)}, "as for a login"),
        ({"status": 422, "body": b'{"status":"error","error":"query timed out"}'}, "query timed out"),
        ({"status": 500, "body": b"\xff\xfe"}, "Internal Server Error"),
        ({"body": b"<html>Log in</html>"}, "not that of a Prometheus"),
        ({"body": b'{"data":{"result":[1]}}'}, "not that of a Prometheus"),
        ({"body": b"[" * 100_000}, "not that of a Prometheus"),
        *(({"body": _vector(odd)}, "not that of a Prometheus") for odd in _ODD_SERIES),
    ],
)
def test_answers_of_others(answer: dict[str, object], sentence: str) -> None:
    """One sentence names the server, and never the password."""
    with _serving(**answer) as (address, _), pytest.raises(UserError) as raised:
        main(["r", "--prometheus", f"http://me:secret@{address}/prometheus"])
    assert sentence in str(raised.value)
    assert f"http://{address}/prometheus" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "1e308"])
def test_impossible_values(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that no attempt, rank or moment has are left out, whatever series they are in."""
    now = time.time()
    for number in ("9" * 5000, "\u00b2", "7"):
        labels = {"state": "productive", "attempt": number, "rank": number, "outcome": "failed"}
        series = {"metric": labels, "value": [now, value], "values": [[now - 60, value], [now, value]]}
        with _serving(body=_vector(series)) as (address, _):
            for command in (main, report):
                assert command(["r", "--prometheus", f"http://{address}"]) == 0
        assert "r" in capsys.readouterr().out


def test_slow_server() -> None:
    """A server that does not answer costs no more than the timeout."""
    with _serving(seconds=0.5) as (address, _), pytest.raises(UserError, match=r"no answer within 0\.1 s"):
        main(["r", "--prometheus", f"http://{address}", "--timeout-seconds", "0.1"])


def test_server_that_sends_a_byte_now_and_then() -> None:
    """The timeout is that of the whole answer, and not of each byte."""
    slowly = {"body": b"[" * 20, "pause": 0.05}
    with _serving(**slowly) as (address, _), pytest.raises(UserError, match=r"no answer within 0\.2 s"):
        main(["r", "--prometheus", f"http://{address}", "--timeout-seconds", "0.2"])


def test_nobody_listens() -> None:
    """The reason is the system's."""
    with pytest.raises(UserError, match=r"could not ask Prometheus at http://127\.0\.0\.1:1: .*refused"):
        main(["r", "--prometheus", "http://127.0.0.1:1"])


@pytest.mark.parametrize(
    ("credentials", "flags", "sent"),
    [("me:p%40ss@", [], "Basic bWU6cEBzcw=="), ("", ["--bearer-token-file"], "Bearer t0ken")],
)
def test_credentials(credentials: str, flags: list[str], sent: str, tmp_path: Path) -> None:
    """A name and a password in the URL, or a token from a file."""
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    arguments = [*flags, str(token)] if flags else []
    with _serving(body=b'{"data":{"result":[]}}') as (address, asked), pytest.raises(UserError):
        main(["r", "--prometheus", f"http://{credentials}{address}", *arguments])
    assert set(asked) == {sent}


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "ftp://x", "http://", "http://[", "http://a b", "http://x:0"]
)
def test_no_url(url: str) -> None:
    """Nothing is asked."""
    with pytest.raises(UserError, match="--prometheus is no URL"):
        main(["r", "--prometheus", url])


@pytest.mark.parametrize(
    "arguments", [["--since", "0d"], ["--since", "1y"], ["--since", "400d"], ["--timeout-seconds", "nan"]]
)
def test_wrong_options(arguments: list[str]) -> None:
    """They end with status 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["r", "--prometheus", "http://x", *arguments])
    assert stopped.value.code == 2


def test_wrong_token_file(tmp_path: Path) -> None:
    """One that is missing or empty."""
    for content, words in ((None, "could not read"), ("\n", "holds no token")):
        path = tmp_path / "token"
        if content is not None:
            path.write_text(content)
        with pytest.raises(UserError, match=words):
            main(["r", "--prometheus", "http://x", "--bearer-token-file", str(path)])
