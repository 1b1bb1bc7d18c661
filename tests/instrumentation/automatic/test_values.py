"""Loss, gradient norm, learning rate, loss scale and amounts of work of a loop that reports none."""

from __future__ import annotations

from collections import UserDict
from typing import Any
from unittest.mock import Mock

import pytest

from rankwatch.automatic.values import Values, amounts_of
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.run import Run
from support.jobs.gloo import gloo

torch = pytest.importorskip("torch")


def written(values: Values) -> list[tuple[str, Any]]:
    """What the values give for one step: names and scalars."""
    run = Mock(spec=Run)
    values.write(run)
    return [each.args for each in run.scalar.mock_calls]


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Values:
    """Values of their own, and an empty record of what is visible."""
    monkeypatch.setattr(visibility, "_states", {})
    return Values()


def optimizer(rate: Any = 0.5) -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=rate)


@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25)])
def test_loss_of_one_backward(values: Values, rate: Any) -> None:
    """It is the loop's own, bit for bit, also where the loop changes its tensor afterwards. The learning rate
    may be a tensor."""
    loss = (torch.tensor(0.1, requires_grad=True) * 3).sum()
    own = loss.item()
    values.backward(loss)
    with torch.no_grad():
        loss.zero_()
    values.stepped(optimizer(rate))
    assert written(values) == [("loss", own), ("learning_rate", 0.25)]
    assert written(values) == []
    assert visibility.has_seen(Capability.LOSS)


def test_accumulation(values: Values) -> None:
    """The losses of several backward passes add up; those of a list as well."""
    for each in (0.5, 0.25):
        values.backward(torch.tensor(each))
    values.backward([torch.tensor(1.0), torch.tensor(2.0)])
    values.stepped(optimizer())
    assert written(values)[0] == ("loss", 3.75)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_of_accumulation(values: Values, dtype: torch.dtype) -> None:
    """The sum has the bits that a loop gets which adds up the tensors in this order."""
    losses = torch.tensor([0.1, 0.2, 0.7, 1e-3, 3.3], dtype=dtype)
    own = losses[0].clone()
    for each in losses:
        values.backward(each)
    for each in losses[1:]:
        own += each
    values.stepped(optimizer())
    assert written(values)[0] == ("loss", own.item())
    assert own.item() != float(losses.double().sum()) or dtype is torch.float64


def test_two_optimizers(values: Values) -> None:
    """Each has its own loss, norm and rate, named in the order in which they first stepped."""
    first, second = optimizer(0.1), optimizer(0.2)
    for losses in ((1.0, 2.0), (3.0, 4.0)):
        values.backward(torch.tensor(losses[0]))
        values.stepped(first)
        values.backward(torch.tensor(losses[1]))
        values.clips(torch.tensor(9.0))
        values.stepped(second)
        assert written(values) == [
            ("loss", losses[0]),
            ("learning_rate", 0.1),
            ("loss_2", losses[1]),
            ("gradient_norm_2", 9.0),
            ("learning_rate_2", 0.2),
        ]


def test_two_optimizers_after_one_backward(values: Values) -> None:
    """The loss is that of the first; the second one has no own."""
    values.backward(torch.tensor(1.0))
    both = [optimizer(0.1), optimizer(0.2)]
    for each in both:
        values.stepped(each)
    assert written(values) == [("loss", 1.0), ("learning_rate", 0.1), ("learning_rate_2", 0.2)]


@pytest.mark.parametrize("kept", [True, False])
def test_many_optimizers(values: Values, kept: bool) -> None:
    """Only the first four are recorded. One that is made again takes the place of the one that is gone."""
    optimizers = []
    for number in range(40):
        values.stepped(stepping := optimizer(float(number + 1)))
        optimizers += [stepping] * kept
        del stepping
    names = ["learning_rate", *(f"learning_rate_{number}" for number in (2, 3, 4))]
    assert [name for name, _ in written(values)] == (names if kept else ["learning_rate"] * 40)


def test_skipped_step(values: Values) -> None:
    """A step that a gradient scaler skips has a loss and a norm, but no learning rate."""
    values.backward(torch.tensor(2.0))
    values.clips(torch.tensor(float("inf")))
    values.stepped(None)
    assert written(values) == [("loss", 2.0), ("gradient_norm", float("inf"))]


@pytest.mark.parametrize("changed", [False, True])
def test_scaled_loss(values: Values, changed: bool) -> None:
    """The loss is what the scaler was given. One that was changed afterwards is not recorded, because its
    factor is not known."""
    loss = torch.tensor(0.3)
    scaled = loss * 65536.0
    values.scaled(loss, scaled)
    values.backward(scaled / 4 if changed else scaled)
    values.stepped(None)
    assert written(values) == ([] if changed else [("loss", loss.item())])
    assert visibility._states[Capability.LOSS] is (Unseen.UNKNOWN_SCALE if changed else None)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (torch.ones(3), Unseen.SEVERAL_ELEMENTS),
        (torch.ones((), device="meta"), Unseen.DEVICE),
        ("loss", Unseen.UNKNOWN_FORMAT),
    ],
)
def test_unreadable_loss(values: Values, loss: object, why: Unseen) -> None:
    """The record says why; nothing is read from a device."""
    values.backward(loss)
    values.stepped(None)
    assert written(values) == []
    assert visibility._states[Capability.LOSS] is why


def test_loss_of_a_framework(values: Values) -> None:
    """Where an integration reports the loss, backward passes do not."""
    values.finds_loss = False
    values.backward(torch.tensor(1.0))
    values.stepped(None)
    assert written(values) == []


def test_norms(values: Values) -> None:
    """Groups that are clipped by their own norms have a common one; a norm that is used twice counts once.
    One that was only computed counts if it is the only one."""
    three = torch.tensor(3.0)
    for clipped in ((three, torch.tensor(4.0)), (three, three.view(()))):
        for each in clipped:
            values.clips(each)
        values.stepped(None)
    for computed in ([3.0], [1.0, 2.0]):
        for number in computed:
            values.computed(torch.tensor(number))
        values.stepped(None)
    assert written(values) == [
        ("gradient_norm", 5.0), ("gradient_norm_2", 3.0), ("gradient_norm_3", 3.0),
    ]  # fmt: skip


def test_loss_scale(values: Values) -> None:
    """It is read from the scaler's own tensor. Before the first use there is none."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    values.scales(scaler)
    scaler.scale(torch.tensor(1.0))
    values.scales(scaler)
    assert written(values) == [("loss_scale", 8.0)]


class Fused(torch.optim.SGD):
    """An optimizer that unscales its gradients itself, on its device."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        assert self.found_inf is not None and self.grad_scale is not None  # type: ignore[attr-defined]


def test_skipped_updates(values: Values) -> None:
    """Each optimizer of a scaler says whether it was skipped. Nothing is said of gradients on several
    devices: to add up what was found there would wait."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    for weight, factor in zip(weights, (1.0, float("inf")), strict=True):
        stepping = Fused([weight], lr=0.1)
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(stepping)
    values.scales(scaler)
    assert written(values) == [("loss_scale", 8.0), ("update_skipped", 0.0), ("update_skipped_2", 1.0)]
    found = next(iter(scaler._per_optimizer_states.values()))["found_inf_per_device"]
    found[torch.device("meta")] = torch.tensor(0.0)  # type: ignore[index]
    values.scales(scaler)
    assert written(values) == [("loss_scale", 8.0), ("update_skipped_2", 1.0)]


class OnDevice(torch.Tensor):  # type: ignore[name-defined, misc]
    """A tensor that says it is on a GPU. Reading its value is an error: it would wait."""

    is_cpu = False
    is_cuda = True

    def item(self) -> float:
        raise AssertionError("the value was read")

    __float__ = __bool__ = __int__ = item  # type: ignore[assignment]


def on_device(value: float) -> Any:
    return torch.tensor(value).as_subclass(OnDevice)


def test_nothing_waits_for_a_device(values: Values) -> None:
    """Values of a GPU stay there: they are copied when they are seen, and added up there."""
    loss = on_device(0.5)
    values.backward(loss)
    loss.zero_()
    values.backward(on_device(0.25))
    values.clips(on_device(3.0))
    values.clips(on_device(4.0))
    stepping = optimizer()
    stepping.param_groups[0]["lr"] = on_device(0.125)
    values.stepped(stepping)
    scaler = torch.amp.GradScaler("cpu")
    scaler._scale = on_device(8.0)
    scaler._per_optimizer_states[1]["found_inf_per_device"] = {"cuda:0": on_device(1.0)}
    values.scales(scaler)
    found = {name: value.as_subclass(torch.Tensor).item() for name, value in written(values)}
    assert found == {
        "loss": 0.75, "gradient_norm": 5.0, "learning_rate": 0.125, "loss_scale": 8.0, "update_skipped": 1.0,
    }  # fmt: skip


def test_parts_on_several_ranks(values: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm of which each rank holds a part is not put together; one that all hold is read."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    with gloo():
        mesh = init_device_mesh("cpu", (1,))
        part, whole = (
            DTensor.from_local(torch.tensor(3.0), mesh, [kind]) for kind in (Partial(), Replicate())
        )
        for name in ("full_tensor", "redistribute"):
            monkeypatch.delattr(DTensor, name)
        values.clips(part)
        values.stepped(None)
        assert visibility._states[Capability.GRADIENT_NORM] is Unseen.COLLECTIVE
        values.clips(whole)
        values.stepped(None)
        assert written(values) == [("gradient_norm_2", 3.0)]


def test_norms_without_steps(values: Values) -> None:
    """Where the script records its own run nobody tells steps: what is kept for the next one has a limit."""
    for number in range(10_001):
        values.clips(float(number))
        values.computed(float(number))
    assert len(values._clip_norms) == len(values._computed_norms) == 10_000


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
def test_unknown_amounts(batch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed: images in lists, graphs, tensors that disagree. The record says so."""
    monkeypatch.setattr(visibility, "_states", {})
    assert amounts_of(batch) == {}
    assert visibility._states[Capability.WORK] is Unseen.UNKNOWN_FORMAT
