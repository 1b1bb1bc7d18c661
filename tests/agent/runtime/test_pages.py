"""The pages of the agent, and who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.exposition import Exposition
from rankwatch_agent.runtime.pages import BearerToken, build_routes, build_token, warning_if_open
from rankwatch_agent.runtime.server import Route
from rankwatch_agent.runtime.supervisor import Snapshot
from support.agent.process import fetch
from support.servers.routes import serving

TOKEN = "s3cret-Token"
EXPECTED = metric("rankwatch_gpus_expected")
VISIBLE = metric("rankwatch_gpus_visible")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def routes(file: Path) -> dict[str, Route]:
    token: BearerToken | None = build_token(file)
    return build_routes(lambda: Snapshot((), ()), Exposition({"node": "n1"}), token)


def status(address: str, path: str = "/metrics", authorization: str | None = None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    return fetch(address, path, headers=headers).status


def test_metrics_and_index_require_the_token(file: Path) -> None:
    """Status 401 names the scheme. Its case does not matter (RFC 9110)."""
    with serving(routes(file)) as (_, address):
        for path in ("/metrics", "/metrics?x=1", "/"):
            refused = fetch(address, path)
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="rankwatch"')
            assert b"process_" not in refused.body
            assert status(address, path, f"Bearer {TOKEN}") == 200
            assert status(address, path, f"bearer {TOKEN}") == 200


@pytest.mark.parametrize(
    "wrong",
    ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer s3cret", "Bearer \xff"],
)
def test_wrong_token(file: Path, wrong: str) -> None:
    """Also one that begins right."""
    with serving(routes(file)) as (_, address):
        assert status(address, authorization=wrong) == 401


def test_probes_need_no_token(file: Path) -> None:
    """The kubelet has none."""
    with serving(routes(file)) as (_, address):
        assert [status(address, path) for path in ("/healthz", "/readyz", "/readyz/gpus")] == [200, 200, 503]


def test_token_file_changes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new token replaces the old one. An emptied or removed file lets nobody in without a token."""
    with serving(routes(file)) as (_, address):
        assert status(address, authorization=f"Bearer {TOKEN}") == 200
        file.write_text("another-one")
        assert status(address, authorization=f"Bearer {TOKEN}") == 401
        assert status(address, authorization="Bearer another-one") == 200
        file.write_text("\n")
        assert status(address, authorization="Bearer ") == 401
        assert status(address, authorization="Bearer another-one") == 200
        file.unlink()
        assert status(address, authorization="Bearer another-one") == 200
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    kept = "; the previous version stays in use"
    assert warned == [
        f"could not use bearer_token_file {file}: it is empty{kept}",
        f"could not read bearer_token_file {file}: No such file or directory{kept}",
    ]


def test_wrong_token_file_at_the_start(tmp_path: Path) -> None:
    """It is missing, empty, or more than one word. The error does not show the content."""
    path = tmp_path / "token"
    with pytest.raises(UserError, match=r"could not read bearer_token_file .*: No such file or directory$"):
        build_token(path)
    for text, reason in ((" \n", "it is empty"), ("two words", "expected one word of printable ASCII")):
        path.write_text(text)
        with pytest.raises(UserError, match=f"could not use bearer_token_file {path}: {reason}$"):
            build_token(path)


@pytest.mark.parametrize(
    ("host", "guarded", "shown"),
    [
        ("0.0.0.0", False, "0.0.0.0:9477"),
        ("::", False, "[::]:9477"),
        ("0.0.0.0", True, None),
        ("127.0.0.1", False, None),
        ("::1", False, None),
        ("10.1.2.3", False, None),
    ],
)
def test_warning_if_open_to_all(host: str, guarded: bool, shown: str | None) -> None:
    """It names what to set. There is none with TLS or a token, nor for one address, which somebody chose."""
    warning = warning_if_open(host, 9477, guarded=guarded)
    assert (warning is None) == (shown is None)
    if warning:
        assert f"open to everyone who reaches {shown}" in warning
        assert "bearer_token_file" in warning


@pytest.mark.parametrize(
    ("expected", "visible", "status", "text"),
    [
        (8, 8, 200, "ok: 8 of 8 GPUs answer"),
        (8, 9, 200, "ok: 9 of 8 GPUs answer"),
        (8, 7, 503, "7 of 8 GPUs on the PCI bus answer; rankwatch_gpu_up names those lost"),
        (8, 0, 503, "0 of 8 GPUs on the PCI bus answer; the agent's log says why collector gpu fails"),
        (8, None, 503, "unknown: GPUs have not been counted"),
        (None, 8, 503, "unknown: GPUs have not been counted"),
        (None, None, 503, "unknown: GPUs have not been counted"),
        (0, None, 200, "ok: no GPUs on the PCI bus"),
    ],
)
def test_gpu_readiness(expected: float | None, visible: float | None, status: int, text: str) -> None:
    """The counts may come from different collectors. GPUs that were not counted are not healthy."""
    counted = [(EXPECTED, expected), (VISIBLE, visible)]
    collections = tuple(Collection([Series(each, (), value)]) for each, value in counted if value is not None)
    with serving(build_routes(lambda: Snapshot(collections, ()), Exposition({}))) as (_, address):
        reply = fetch(address, "/readyz/gpus")
        assert (reply.status, reply.body.decode()) == (status, f"{text}\n")
        assert fetch(address, "/readyz").status == 200
        assert b'href="/readyz/gpus"' in fetch(address, "/").body
