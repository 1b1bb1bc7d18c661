"""Scalars, amounts of work, and values that a GPU delivers late."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import rankwatch
from rankwatch.blackbox.layout import Now, RecordKind
from support.training.blackbox import box, of_kind, read

torch: Any = pytest.importorskip("torch")


def _scalars_and_work(directory: Path) -> list[tuple[str, tuple[float, ...]]]:
    """(name, (value, step)) of each record."""
    kinds = (RecordKind.SCALAR, RecordKind.WORK)
    return [(each.name, each.payload) for each in read(box(directory)) if each.kind in kinds]


def test_numbers_and_tensors(run: rankwatch.Run, tmp_path: Path) -> None:
    """They are recorded with their step, even a tensor that requires a gradient."""
    with run.step(3):
        run.scalar("loss", torch.tensor(2.5, requires_grad=True) * 1)
        run.scalar("learning_rate", 0.125)
        run.scalar("gradient_norm", torch.tensor([4.0], dtype=torch.bfloat16))
        run.work(samples=8, tokens=1024)
    assert _scalars_and_work(tmp_path) == [
        ("loss", (2.5, 3)),
        ("learning_rate", (0.125, 3)),
        ("gradient_norm", (4.0, 3)),
        ("samples", (8.0, 3)),
        ("tokens", (1024.0, 3)),
    ]


def test_nan(run: rankwatch.Run, tmp_path: Path) -> None:
    """NaN is recorded as NaN, because an alert fires on it."""
    run.scalar("loss", math.nan)
    assert math.isnan(of_kind(box(tmp_path), RecordKind.SCALAR)[0].payload[0])


def test_value_that_is_no_number(run: rankwatch.Run, tmp_path: Path) -> None:
    """It is counted as an error and does not raise."""
    run.scalar("loss", object())
    run.scalar("loss", torch.zeros(3))
    run.work(samples="many")  # type: ignore[arg-type]
    assert run._writer.integers[Now.ERRORS] == 3


class _SlowGpu:
    """A fake tensor on a GPU; reading its value synchronises."""

    def __init__(self, value: float) -> None:
        self.is_cuda = True
        self.device = "cuda:1"
        self.dtype = torch.float32
        self.value = value
        self.synchronised = False

    def detach(self) -> _SlowGpu:
        return self

    def reshape(self, *_: int) -> _SlowGpu:
        return self

    def __float__(self) -> float:
        self.synchronised = True
        return self.value


def test_loss_on_gpu(run: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied asynchronously, on the stream of its device, and recorded with its own step once the event
    has passed; so is an amount of work, which is often the sum of a mask. While a CUDA graph is captured it
    has no value."""
    passed, capturing = [False], [False]
    loss, tokens = _SlowGpu(1.5), _SlowGpu(7.0)

    class Event:
        def record(self, stream: object) -> None:
            assert stream == "of cuda:1"

        def query(self) -> bool:
            return passed[0]

    class Pinned:
        def copy_(self, source: _SlowGpu, *, non_blocking: bool) -> None:
            assert non_blocking
            self.value = source.value

        def __float__(self) -> float:
            return self.value

    def empty(*_: object, **options: object) -> Pinned:
        assert options["pin_memory"]
        assert options["device"] == "cpu"  # the default device may be another one
        return Pinned()

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", "of {}".format)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    with run.step():
        run.scalar("loss", loss)
        run.work(tokens=tokens)  # type: ignore[arg-type]
        capturing[0] = True
        run.scalar("loss", loss)
    assert _scalars_and_work(tmp_path) == []
    passed[0] = True
    with run.step():
        pass
    assert _scalars_and_work(tmp_path) == [("loss", (1.5, 0)), ("tokens", (7.0, 0))]
    assert not loss.synchronised
    assert not tokens.synchronised


@pytest.mark.parametrize("device", ["xpu:0", "mps:0", "meta"])
def test_value_on_another_device(run: rankwatch.Run, device: str) -> None:
    """It is counted as an error and never read, because only CUDA values can be copied asynchronously."""

    value = SimpleNamespace(is_cpu=False, is_cuda=False, device=device, item=Mock(return_value=1.0))
    run.scalar("loss", value)
    value.item.assert_not_called()
    assert run._writer.integers[Now.ERRORS] == 1


def test_distributed_tensor(run: rankwatch.Run, tmp_path: Path) -> None:
    """The rank's own part is recorded. The full value may need a collective that this rank would enter
    alone."""
    distributed = SimpleNamespace(is_cuda=False, to_local=lambda: torch.tensor(3.0))
    run.scalar("gradient_norm", distributed)
    assert [each.payload[0] for each in of_kind(box(tmp_path), RecordKind.SCALAR)] == [3.0]


@pytest.mark.parametrize("amount", [-1, -0.5, math.nan, math.inf])
def test_impossible_work(run: rankwatch.Run, tmp_path: Path, amount: float) -> None:
    """Work that is negative or not finite is wrong use, and is not recorded."""
    with pytest.raises(rankwatch.UsageError, match="tokens is no amount"):
        run.work(tokens=amount)
    with run.step():
        pass
    run.work(tokens=amount)  # after the first step wrong use is counted only
    assert of_kind(box(tmp_path), RecordKind.WORK) == []
