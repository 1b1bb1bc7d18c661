"""safetensors: header, sizes, layout, and the shards of an index."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankwatch_checkpoints import Damage, Outcome, reading, verify
from support.checkpoints import flip, truncate, write_safetensors

verifying = sys.modules["rankwatch_checkpoints.verify"]  # the package has a function of its name
TWO = {"a": ("F32", [2, 3], b"a" * 24), "b": ("BF16", [5], b"b" * 10)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "model.safetensors", TWO)
    return tmp_path / "model.safetensors"


def rewrite(path: Path, **changes: Any) -> None:
    """Change the header's entry of tensor `a`."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["a"].update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def test_good(saved: Path) -> None:
    """Good, and it says that values have no checksum."""
    found = verify(saved)
    assert (found.outcome, found.format, found.tensors) == (Outcome.GOOD, "safetensors", 2)
    assert "no checksum" in found.unchecked[0].reason
    assert found.verified_bytes == found.bytes - 34


@pytest.mark.parametrize(
    ("changes", "damage"),
    [
        ({"data_offsets": [0, 25]}, Damage.SIZE),
        ({"data_offsets": [24, 0]}, Damage.MALFORMED),
        ({"data_offsets": [-1, 23]}, Damage.MALFORMED),
        ({"shape": [2, 4]}, Damage.SIZE),
        ({"shape": [1 << 40, 1 << 40]}, Damage.SIZE),
        ({"shape": [-1]}, Damage.MALFORMED),
        ({"shape": [True, 6]}, Damage.MALFORMED),
        ({"shape": [0, 1 << 62, 1 << 62]}, Damage.SIZE),
        ({"shape": [10**4000] * 9}, Damage.MALFORMED),
        ({"shape": [1] * 1000}, Damage.MALFORMED),
        ({"data_offsets": [0, 10**4200]}, Damage.MALFORMED),
        ({"dtype": "F33"}, Damage.MALFORMED),
        ({"dtype": "F64"}, Damage.SIZE),
        ({"data_offsets": [4, 28]}, Damage.MALFORMED),
    ],
)
def test_headers_that_contradict_themselves(saved: Path, changes: dict[str, Any], damage: Damage) -> None:
    rewrite(saved, **changes)
    problem = verify(saved).problems[0]
    assert (problem.damage, problem.tensor) == (damage, "a")


def test_truncation_names_the_tensor(saved: Path) -> None:
    truncate(saved, saved.stat().st_size - 3)
    (problem,) = verify(saved).problems
    assert (problem.damage, problem.tensor) == (Damage.TRUNCATED, "b")
    truncate(saved, 5)
    assert verify(saved).problems[0].damage is Damage.TRUNCATED


def test_bytes_behind_the_end(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"x")
    assert verify(saved).problems[0].damage is Damage.EXTRA


@pytest.mark.parametrize(
    "header", [b'{"a": ' + b"[" * 100_000, b"[]", b"\xff\xfe", b'{"a": {}, "a": {}}', b"null"]
)
def test_headers_that_are_none(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert verify(path).problems[0].damage is Damage.MALFORMED


def test_huge_header(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"\xff" * 100)
    assert "more than safetensors allows" in verify(path).problems[0].detail


def test_shards_of_an_index(tmp_path: Path) -> None:
    """A shard that is missing is named with its first tensor, a tensor that is in no shard by its name."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(folder / "model-00001-of-00002.safetensors", TWO)
    weights = dict.fromkeys(("a", "b", "c"), "model-00001-of-00002.safetensors")
    weights["d"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    found = {(each.file, each.tensor, each.damage) for each in verify(folder).problems}
    assert found == {
        ("model-00001-of-00002.safetensors", "c", Damage.MISSING),
        ("model-00002-of-00002.safetensors", "d", Damage.MISSING),
    }


@pytest.mark.parametrize(
    ("module", "limit"), [(verifying, "_MOST_NAME_CHARACTERS"), (reading, "MOST_JSON_VALUES")]
)
def test_index_of_more_than_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str
) -> None:
    """Names that do not fit into memory are not compared, which is said, and is no damage."""
    (tmp_path / "model").mkdir()
    name = "model-00001-of-00001.safetensors"
    write_safetensors(tmp_path / "model" / name, TWO)
    index = {"weight_map": {f"{each}": name for each in range(200)}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(module, limit, 150)
    found = verify(tmp_path / "model")
    assert found.problems == []
    assert any(each.file == "model.safetensors.index.json" for each in found.unchecked)


@pytest.mark.parametrize("index", [b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": 5}}', b"[" * 100_000])
def test_index_that_is_none(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    assert verify(tmp_path).problems[0].damage is Damage.MALFORMED


def test_every_bit_of_the_header(saved: Path) -> None:
    """Names and metadata may change unseen; nothing else, and never with an exception."""
    length = int.from_bytes(saved.read_bytes()[:8], "little")
    unseen = []
    for bit in range(8 * (8 + length)):
        flip(saved, bit)
        if verify(saved).outcome is Outcome.GOOD:
            unseen.append(saved.read_bytes()[8 : 8 + length])
        flip(saved, bit)
    original = json.loads(saved.read_bytes()[8 : 8 + length])
    for header in unseen:
        read = json.loads(header)
        entries = [entry for name, entry in read.items() if name != "__metadata__" and "dtype" in entry]
        for entry in entries[-2:]:
            assert entry in original.values() or entry["dtype"] in ("F16", "I16", "U16", "U32", "I32", "F32")
