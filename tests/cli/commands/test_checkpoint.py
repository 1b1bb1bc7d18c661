"""`rankwatch checkpoint verify` and `newest`: lines, JSON and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rankwatch_cli.main import main
from support.checkpoints import flip, save_distributed, state


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_distributed(tmp_path / "step-7")


def test_good(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(saved)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"good: {saved} (distributed, step 7, 2 files, ")
    assert "by checksum, 6 tensors and objects by name" in second


def test_damaged(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and the file and the tensor are named."""
    flip(saved / "__0_0.distcp", 8 * 3000)
    assert main(["checkpoint", "verify", str(saved)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("damaged: ")
    assert "__0_0.distcp, tensor model." in out


def test_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", "--json", str(saved)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["step"], found["problems"]) == ("good", 7, [])


def test_incomplete(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / ".metadata").unlink()
    assert main(["checkpoint", "verify", str(saved)]) == 1
    assert capsys.readouterr().out.startswith("incomplete: ")


def test_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not there, what is foreign, and flags that make no sense: exit status 2."""
    (tmp_path / "notes").write_text("hello")
    assert main(["checkpoint", "verify", str(tmp_path / "notes")]) == 2
    assert capsys.readouterr().out.startswith("unverifiable: ")
    assert main(["checkpoint", "verify", str(tmp_path / "none")]) == 2
    assert (
        capsys.readouterr().err
        == f"rankwatch checkpoint: could not verify {tmp_path}/none: it is not there\n"
    )
    assert main(["checkpoint", "newest", str(tmp_path)]) == 2
    assert "no name in it says a step" in capsys.readouterr().err
    for rate in ("0", "-5", "fast", ""):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", "verify", "--bytes-per-second", rate, str(tmp_path)])
        assert ended.value.code == 2


def test_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(state(5), tmp_path / "step_1.pt")
    torch.save(state(5), tmp_path / "step_2.pt")
    flip(tmp_path / "step_2.pt", 8 * 1500)
    assert main(["checkpoint", "newest", str(tmp_path), "--bytes-per-second", "1.5G"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"good: {tmp_path}/step_1.pt (torch, step 1, ")
    assert second.startswith("  passed over step_2.pt: damaged: step_2.pt")
    assert main(["checkpoint", "newest", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["newest"]["step"] == 1
    (tmp_path / "step_1.pt").unlink()
    assert main(["checkpoint", "newest", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("none of the 1 checkpoints")
