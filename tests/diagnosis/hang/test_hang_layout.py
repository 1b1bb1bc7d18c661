"""The fast reader of PyTorch's own layout gives what the plain one gives, or nothing."""

from __future__ import annotations

import pickle

import pytest

from rankwatch_diagnosis.hang.dumps.layout import read_recorder_pickle
from rankwatch_diagnosis.hang.dumps.parse import parse_dump
from rankwatch_diagnosis.hang.dumps.plain_pickle import load_plain
from support.diagnosis.hang_jobs import Fault, HungJob, Shape
from support.paths import RECORDED
from support.training.recorder_pickle import recorder_pickle

REAL = RECORDED / "flight_recorder"


@pytest.mark.parametrize("kind", ["asleep", "device", "other", "size", "skip"])
@pytest.mark.parametrize("frames", [False, True])
def test_both_readers_give_the_same_snapshot(kind: str, frames: bool) -> None:
    """With sends, with calls that differ, with and without recorded stacks."""
    job = HungJob(Shape(2, 2, 2), 3, steps=12)
    job.run(Fault(kind, (5,), job.places(5, kind)[-1]))
    for rank, document in job.dumps().items():
        if frames:
            for entry in document["entries"]:
                entry["frames"] = [{"name": "step", "filename": "train.py", "line": 300 + rank}]
        data = recorder_pickle(document)
        known = read_recorder_pickle(data, rank)
        assert known is not None
        assert known == parse_dump(load_plain(data), rank)


def test_another_layout_is_left_to_the_plain_reader() -> None:
    """Pickles of Python, a pickle with keys after the entries, and a broken one."""
    job = HungJob(Shape(4), 3)
    job.run(Fault("asleep", (2,), job.places(2, "asleep")[1]))
    document = job.dumps()[0]
    written = recorder_pickle(document)
    others = [
        pickle.dumps(document),
        recorder_pickle(document | {"version2": "x"}),
        written[:-40] + written[-12:],
        b"",
    ]
    assert [read_recorder_pickle(each, 0) for each in others] == [None] * len(others)


def test_real_dumps_are_read_alike() -> None:
    """Every one of them has the layout that the fast reader knows, or no entry."""
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not on this machine")
    known = 0
    for path in REAL.glob("*/_dump_*"):
        data = path.read_bytes()
        found = read_recorder_pickle(data, 0)
        assert found is None or found == parse_dump(load_plain(data), 0)
        known += found is not None
    assert known >= 28
