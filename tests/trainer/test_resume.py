"""A run that is killed and resumed gives the same results, bit for bit, as one that is never killed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.jobs.trainer import TINY, end_record, plain_store, read_history, started_ranks

pytestmark = pytest.mark.process


def assert_equal(one: object, other: object) -> None:
    """Nested containers of tensors and plain values are exactly equal."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor) and torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict) and one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert isinstance(other, list | tuple) and len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def run_to_the_end(directory: Path, *arguments: str) -> None:
    """Run two ranks, both of which must exit with status 0."""
    with started_ranks(directory, arguments) as ranks:
        for each in ranks:
            assert each.wait() == 0, each.printed


def test_resume_after_kill(tmp_path: Path) -> None:
    """Losses and all saved state of both ranks are the same as those of a run that was not interrupted."""
    common = (*TINY, "--steps", "20", "--accumulation", "2", "--checkpoint-every", "10")
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    history = str(tmp_path / "straight.json")
    run_to_the_end(tmp_path, *common, "--checkpoint-dir", str(straight), "--history", history)

    flags = (*common, "--checkpoint-dir", str(broken))
    with started_ranks(tmp_path, (*flags, "--fault", "kill:rank=1,from=11")) as ranks:
        assert [each.wait() for each in ranks] == [1, -9]
    record = end_record(ranks[0].printed)
    assert (record["outcome"], record["last_step"], record["exception"]) == ("failed", 10, "RuntimeError")
    assert plain_store(broken).steps() == [10]

    history = str(tmp_path / "resumed.json")
    run_to_the_end(tmp_path, *flags, "--resume", "auto", "--history", history)
    assert read_history(tmp_path / "resumed.json")["step"] == list(range(11, 21))
    assert (
        read_history(tmp_path / "straight.json")["loss"][10:]
        == read_history(tmp_path / "resumed.json")["loss"]
    )
    assert_equal(plain_store(straight).load(20), plain_store(broken).load(20))
