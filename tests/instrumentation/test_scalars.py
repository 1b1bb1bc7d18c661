"""Scalars, amounts of work, and values that a GPU delivers late."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox.layout import Now, RecordKind
from support.training.blackbox import box, of_kind

torch: Any = pytest.importorskip("torch")


def test_numbers_and_tensors(run: rankwatch.Run, tmp_path: Path) -> None:
    """They are recorded with their step, even a tensor that requires a gradient."""
    with run.step(3):
        run.scalar("loss", torch.tensor(2.5, requires_grad=True) * 1)
        run.scalar("learning_rate", 0.125)
        run.scalar("gradient_norm", torch.tensor([4.0], dtype=torch.bfloat16))
        run.work(samples=8, tokens=1024)
    assert [(each.name, each.payload) for each in of_kind(box(tmp_path), RecordKind.SCALAR)] == [
        ("loss", (2.5, 3)),
        ("learning_rate", (0.125, 3)),
        ("gradient_norm", (4.0, 3)),
    ]
    assert [(each.name, each.payload) for each in of_kind(box(tmp_path), RecordKind.WORK)] == [
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
    has passed. While a CUDA graph is captured it has no value."""
    passed, capturing = [False], [False]
    loss = _SlowGpu(1.5)

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
        capturing[0] = True
        run.scalar("loss", loss)
    assert of_kind(box(tmp_path), RecordKind.SCALAR) == []
    passed[0] = True
    with run.step():
        pass
    assert [each.payload for each in of_kind(box(tmp_path), RecordKind.SCALAR)] == [(1.5, 0)]
    assert not loss.synchronised


def test_work_on_gpu(run: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An amount of work is copied asynchronously too. The number of tokens is often the sum of a mask."""
    monkeypatch.setattr("rankwatch.scalars._copy_later", lambda kind, name, value, step, moment: _copied())
    tokens = _SlowGpu(7.0)
    with run.step():
        run.work(tokens=tokens)  # type: ignore[arg-type]
    assert not tokens.synchronised
    assert [(each.name, each.payload) for each in of_kind(box(tmp_path), RecordKind.WORK)] == [
        ("tokens", (7.0, 0))
    ]


def _copied() -> Any:
    from rankwatch.scalars import _Pending

    class Passed:
        def query(self) -> bool:
            return True

    return _Pending(RecordKind.WORK, "tokens", 0, 1.0, 7.0, Passed())


@pytest.mark.parametrize("device", ["xpu:0", "mps:0", "meta"])
def test_value_on_another_device(run: rankwatch.Run, device: str) -> None:
    """It is counted as an error and never read, because only CUDA values can be copied asynchronously."""

    class Elsewhere:
        is_cpu = is_cuda = False

        def __init__(self) -> None:
            self.device = device
            self.synchronised = False

        def item(self) -> float:
            self.synchronised = True
            return 1.0

    value = Elsewhere()
    run.scalar("loss", value)
    assert not value.synchronised
    assert run._writer.integers[Now.ERRORS] == 1


def test_distributed_tensor(run: rankwatch.Run, tmp_path: Path) -> None:
    """The rank's own part is recorded. The full value may need a collective that this rank would enter
    alone."""

    class Distributed:
        is_cuda = False

        def to_local(self) -> Any:
            return torch.tensor(3.0)

        def detach(self) -> Any:
            raise AssertionError

    run.scalar("gradient_norm", Distributed())
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
