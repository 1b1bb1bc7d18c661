"""The FLOPs of a token: stated, and counted by torch on models whose FLOPs are known."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import FLOPS_PER_TOKEN
from rankwatch.errors import UsageError
from rankwatch.scalars import REPEAT_STEPS
from support.training.blackbox import of_kind

torch = pytest.importorskip("torch")
TOKENS, WIDTH = 32, 16


def stated(directory: Path) -> list[float]:
    """The values in the box."""
    (path,) = directory.rglob("*.blackbox")
    found = [each for each in of_kind(path, RecordKind.SCALAR) if each.name == FLOPS_PER_TOKEN]
    return [each.payload[0] for each in found]


def steps(run: rankwatch.Run, count: int) -> None:
    for _ in range(count):
        with run.step():
            pass


def train(run: rankwatch.Run, model: torch.nn.Module, *, passes: int = 1) -> None:
    """One step whose FLOPs are counted."""
    with run.step(), run.count_flops(tokens=passes * TOKENS):
        for _ in range(passes):
            model(torch.ones(TOKENS, WIDTH, requires_grad=True)).sum().backward()
    steps(run, 1)


def linear() -> torch.nn.Module:
    return torch.nn.Linear(WIDTH, WIDTH, bias=False)


def test_stated_at_the_start(tmp_path: Path) -> None:
    """It is recorded again now and then, for an agent that starts later."""
    with rankwatch.start(run="r", directory=tmp_path, rank=0, flops_per_token=6e9) as run:
        steps(run, REPEAT_STEPS + 3)
    assert stated(tmp_path) == [6e9, 6e9]


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument wins."""
    monkeypatch.setenv(environment.FLOPS_PER_TOKEN, "4.5e9")
    for name, given, expected in (("a", None, 4.5e9), ("b", 7e9, 7e9)):
        with rankwatch.start(run=name, directory=tmp_path, rank=0, flops_per_token=given) as run:
            steps(run, 1)
        assert stated(tmp_path / name) == [expected]


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_senseless_environment(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is ignored, with one warning."""
    monkeypatch.setenv(environment.FLOPS_PER_TOKEN, text)
    with rankwatch.start(run="r", directory=tmp_path, rank=0) as run:
        steps(run, 2)
    assert stated(tmp_path) == []
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "6e9", True])
def test_senseless_argument(value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"flops_per_token is .*, expected a number above 0"):
        rankwatch.start(run="r", directory=tmp_path, rank=0, flops_per_token=value)
    run = rankwatch.start(run="r", directory=tmp_path, rank=0)
    with run, pytest.raises(UsageError, match="tokens"):
        run.count_flops(tokens=value)


@pytest.mark.parametrize(("passes", "given"), [(1, []), (3, []), (1, [1.0])], ids=["one", "three", "stated"])
def test_counted(tmp_path: Path, passes: int, given: list[float]) -> None:
    """A linear layer: 2 for each weight forward, 4 backward, for any passes. It replaces what is stated."""
    argument = given[0] if given else None
    with rankwatch.start(run="r", directory=tmp_path, rank=0, flops_per_token=argument) as run:
        steps(run, 1)
        train(run, linear(), passes=passes)
    assert stated(tmp_path) == [*given, 6.0 * WIDTH * WIDTH]


def test_recomputation_counts(tmp_path: Path) -> None:
    """What activation checkpointing computes again, here the first layer, is work of the hardware."""
    from torch.utils.checkpoint import checkpoint

    class Again(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(linear(), linear())

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, inputs, use_reentrant=False)

    with rankwatch.start(run="r", directory=tmp_path, rank=0) as run:
        train(run, Again())
    assert stated(tmp_path) == [(2 * 6.0 + 2.0) * WIDTH * WIDTH]


def test_error_in_the_block(tmp_path: Path) -> None:
    """It goes on as without the counter, and half a step states nothing."""
    with rankwatch.start(run="r", directory=tmp_path, rank=0) as run:
        with pytest.raises(ZeroDivisionError), run.step(), run.count_flops(tokens=TOKENS):
            linear()(torch.ones(TOKENS, WIDTH))
            raise ZeroDivisionError
        steps(run, 2)
    assert stated(tmp_path) == []


def test_split_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One rank of two that share a token sees half of its work: nothing is stated, and the log says why."""
    how = {"coordinates": {"tp": (0, 2)}, "world_size": 2}
    with rankwatch.start(run="r", directory=tmp_path, rank=0, **how) as run:  # type: ignore[arg-type]
        train(run, linear())
    assert stated(tmp_path) == []
    assert "splits a model over tp" in caplog.text


def test_nothing_to_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A block without an operation that torch can count."""
    with rankwatch.start(run="r", directory=tmp_path, rank=0) as run:
        with run.step(), run.count_flops(tokens=TOKENS):
            torch.ones(3).add_(1)
        steps(run, 1)
    assert stated(tmp_path) == []
    assert "no operation that torch can count" in caplog.text


def test_without_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs."""
    monkeypatch.setenv(environment.DISABLE, "1")
    run = rankwatch.start(run="r", flops_per_token=5.0)
    with run.count_flops(tokens=TOKENS):
        linear()(torch.ones(TOKENS, WIDTH))


def test_compiled_model(tmp_path: Path) -> None:
    """Under the counter torch runs compiled code in a way that it can count, or nothing is stated."""
    layer = linear()
    model = torch.nn.Sequential(layer)
    layer.compile(backend="aot_eager")
    model(torch.ones(TOKENS, WIDTH, requires_grad=True)).sum().backward()
    with rankwatch.start(run="r", directory=tmp_path, rank=0) as run:
        train(run, model)
    assert stated(tmp_path) in ([], [6.0 * WIDTH * WIDTH])


def test_baseline(tmp_path: Path) -> None:
    """It is stated in the same way."""
    with rankwatch.start(run="r", directory=tmp_path, rank=0, baseline_tokens_per_second=500) as run:
        steps(run, 1)
    (path,) = tmp_path.rglob("*.blackbox")
    assert [(each.name, each.payload[0]) for each in of_kind(path, RecordKind.SCALAR)] == [
        ("baseline_tokens_per_second", 500.0)
    ]
