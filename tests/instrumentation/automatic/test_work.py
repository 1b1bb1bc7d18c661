"""Samples and tokens of a batch, where the batch tells them."""

from __future__ import annotations

from collections import UserDict

import pytest

from rankwatch.automatic.values import amounts_of
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import Capability, Unseen

torch = pytest.importorskip("torch")

MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
IDS = torch.ones(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "amounts"),
    [
        (torch.ones(4, 3), {"samples": 4}),
        ([torch.ones(4, 3), torch.ones(4)], {"samples": 4}),
        ((torch.ones(4, 3), {"label": torch.ones(4)}), {"samples": 4}),
        ((torch.ones(4, 3), ["a", "b", "c", "d"]), {"samples": 4}),
        ({"input_ids": IDS}, {"samples": 2, "tokens": 6}),
        ({"input_ids": IDS, "attention_mask": MASK, "labels": IDS}, {"samples": 2, "tokens": 4}),
        (UserDict({"input_ids": IDS, "attention_mask": MASK.bool()}), {"samples": 2, "tokens": 4}),
        ({"input_ids": IDS, "grid": torch.ones(7, 3)}, {"samples": 2, "tokens": 6}),
        ({"input_ids": IDS.to("meta"), "attention_mask": MASK.to("meta")}, {"samples": 2}),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 3, 3)}, {"samples": 2}),
    ],
)
def test_amounts(batch: object, amounts: dict[str, float]) -> None:
    """Samples by the first dimension; tokens without padding, unless the mask is on a device."""
    assert amounts_of(batch) == amounts


@pytest.mark.parametrize(
    "batch",
    [
        torch.tensor(1.0),
        (torch.ones(4, 3), torch.ones(5)),
        ([torch.ones(3, 8, 8), torch.ones(3, 6, 6)], [{"boxes": torch.ones(2, 4)}]),
        ["text", 3],
        object(),
        {},
    ],
)
def test_unknown(batch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed: images in lists, graphs, tensors that disagree. The record says so."""
    monkeypatch.setattr(visibility, "_states", {})
    assert amounts_of(batch) == {}
    assert visibility._states[Capability.WORK] is Unseen.UNKNOWN_FORMAT
