"""Loss, gradient norm, learning rate and loss scale of a training loop that reports none.

The loss of a step is the sum of what was given to `backward` since the last optimizer step: the function
whose gradient the optimizer applies. With one backward in a step it is that tensor, bit for bit; where the
loop divides each micro-batch's loss by their number, it is their mean. Each optimizer has values of its own:
the first one has `loss`, `gradient_norm` and `learning_rate`, the second one `loss_2` and so on.

Nothing here waits for a device: its tensors are copied there, and `Run.scalar` fetches them later.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import (
    GRADIENT_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    TOKENS,
    UPDATE_SKIPPED,
    Capability,
    Unseen,
)
from rankwatch.disabled import DisabledRun
from rankwatch.run import Run

_MOST_OPTIMIZERS = 4
"""Optimizers whose values are recorded. Loops with one for each layer have too many of them to look at."""
_MOST_SCALED = 16
_MOST_HELD = 64
_MOST_NORMS = 10_000
"""Norms that are kept for a step that may never end: nobody steps where the script records its own run."""


class Values:
    """The scalars of the step that is under way. Only the training thread calls it."""

    def __init__(self) -> None:
        self._losses: list[Any] = []
        self._in_64_bits = False
        """One of them is a number of 64 bits."""
        self._clip_norms: list[Any] = []
        self._computed_norms: list[Any] = []
        self._held: deque[tuple[str, Any]] = deque(maxlen=_MOST_HELD)
        self._optimizers: list[weakref.ref[Any]] = []
        """In the order in which they first stepped. One that is gone leaves its place to the next."""
        self._updates = 0
        """Optimizers that have stepped in this step, or would have."""
        self._scaled: deque[tuple[Any, Any]] = deque(maxlen=_MOST_SCALED)
        self.finds_loss = True
        """False while a framework's integration reports the loss."""

    # -- what patches report ----------------------------------------------------------------------

    def backward(self, loss: object) -> None:
        """Take the tensor, or tensors, that a backward pass starts from."""
        if not self.finds_loss:
            return
        for each in loss if isinstance(loss, (list, tuple)) else (loss,):
            unscaled = self._unscaled(each)
            if unscaled is not None:
                self._add(unscaled)

    def scaled(self, loss: object, result: object) -> None:
        """Take the loss that a gradient scaler has multiplied. The result is what `backward` will be
        given."""
        if isinstance(loss, (list, tuple)) and isinstance(result, (list, tuple)):
            for before, after in zip(loss, result, strict=False):
                self.scaled(before, after)
        elif is_tensor(loss) and is_tensor(result):
            self._scaled.append((weakref.ref(result), loss.detach()))  # type: ignore[attr-defined]

    def clips(self, norm: object) -> None:
        """Note that gradients are about to be clipped by this total norm."""
        if len(self._clip_norms) < _MOST_NORMS:
            self._clip_norms.append(norm)

    def computed(self, norm: object) -> None:
        """Take the norm of some gradients that was computed. It counts if it is the only one, and no clip
        followed."""
        if len(self._computed_norms) < _MOST_NORMS:
            self._computed_norms.append(norm)

    def stepped(self, optimizer: Any) -> None:
        """Take the values of an optimizer's step; None for one that a gradient scaler has kept from it."""
        index = self._index(optimizer)
        self._updates += 1
        losses, self._losses = self._losses, []
        in_64_bits, self._in_64_bits = self._in_64_bits, False
        norms = self._clip_norms or (self._computed_norms if len(self._computed_norms) == 1 else [])
        self._clip_norms, self._computed_norms = [], []
        if index >= _MOST_OPTIMIZERS:
            return
        if losses:
            self._hold(LOSS, index, _sum(losses, in_32_bits=not in_64_bits))
        norm = _total_norm(norms)
        if norm is not None:
            self._hold(GRADIENT_NORM, index, norm)
        rate = None if optimizer is None else optimizer.param_groups[0].get("lr")
        if rate is not None:
            rate = _readable(rate, Capability.LEARNING_RATE)
            if rate is not None:
                self._hold(LEARNING_RATE, index, rate)

    def told(self, loss: Any) -> None:
        """Take the loss of the step whose optimizer has just stepped, from a framework that knows it."""
        value = _readable(loss, Capability.LOSS)
        if value is not None:
            self._hold(LOSS, 0, value)

    def scales(self, scaler: Any) -> None:
        """Take the scale that a gradient scaler is about to update. Its `get_scale` would wait for the
        device."""
        scale = getattr(scaler, "_scale", None)
        value = None if scale is None else _readable(scale, Capability.LOSS_SCALE)
        if value is not None:
            self._held.append((LOSS_SCALE, value))
        for index, state in enumerate(getattr(scaler, "_per_optimizer_states", {}).values()):
            self._skips(index, state)

    def _skips(self, index: int, state: Any) -> None:
        """Hold whether a scaler has found gradients that are not finite: only the device knows it yet. A
        fused optimizer is called all the same, and updates nothing."""
        found = list(state.get("found_inf_per_device", {}).values())
        if index >= _MOST_OPTIMIZERS or len(found) != 1:
            return
        value = _readable(found[0], Capability.LOSS_SCALE)
        if value is not None:
            self._hold(UPDATE_SKIPPED, index, value)

    # -- what the loop asks for -------------------------------------------------------------------

    def write(self, run: Run | DisabledRun) -> None:
        """Record what is there as values of the run's current step, and begin the next one."""
        self._updates = 0
        held, self._held = self._held, deque(maxlen=_MOST_HELD)
        for name, value in held:
            run.scalar(name, value)

    def forget(self) -> None:
        """Drop what is there, for example of a step that was given up."""
        for each in (self._losses, self._clip_norms, self._computed_norms, self._held, self._scaled):
            each.clear()
        self._updates = 0

    def forget_optimizers(self) -> None:
        """Forget all: another training begins. Old optimizers may still exist, but its own count anew."""
        self.forget()
        self._optimizers.clear()

    # -- how --------------------------------------------------------------------------------------

    def _unscaled(self, loss: Any) -> Any:
        """Return the loss before a gradient scaler multiplied it; None, with a note, if it cannot be told."""
        if not self._scaled:
            return loss
        if len(self._scaled) == 1 and self._scaled[0][0]() is loss:
            return self._scaled.popleft()[1]
        found = next((before for result, before in self._scaled if result() is loss), None)
        alive = [each for each in self._scaled if each[0]() is not None and each[0]() is not loss]
        self._scaled = deque(alive, maxlen=_MOST_SCALED)
        if found is None and is_tensor(loss):
            visibility.cannot_see(Capability.LOSS, Unseen.UNKNOWN_SCALE)
        return found

    def _add(self, loss: object) -> None:
        value = _readable(loss, Capability.LOSS)
        if value is None:
            return
        if self._losses and _device(self._losses[0]) != _device(value):
            visibility.cannot_see(Capability.LOSS, Unseen.DEVICE)  # adding them up would wait for one of them
        else:
            self._losses.append(value)
            self._in_64_bits |= not is_tensor(loss) or loss.element_size() > 4  # type: ignore[attr-defined]

    def _hold(self, name: str, index: int, value: Any) -> None:
        self._held.append((name if index == 0 else f"{name}_{index + 1}", value))

    def _index(self, optimizer: Any) -> int:
        if optimizer is None:
            return self._updates
        gone = _MOST_OPTIMIZERS
        for index, each in enumerate(self._optimizers):
            known = each()
            if known is optimizer:
                return index
            if known is None:
                gone = min(gone, index)
        if gone < _MOST_OPTIMIZERS:
            self._optimizers[gone] = weakref.ref(optimizer)
            return gone
        if len(self._optimizers) < _MOST_OPTIMIZERS:
            self._optimizers.append(weakref.ref(optimizer))
            return len(self._optimizers) - 1
        return _MOST_OPTIMIZERS


def _readable(value: Any, capability: Capability) -> Any:
    """Return a float, or a copy on the device of the value; None, with a note why, if it cannot be read."""
    if isinstance(value, (float, int)):
        visibility.sees(capability)
        return float(value)
    why = _obstacle(value)
    if why is not None:
        if not visibility.has_seen(capability):
            visibility.cannot_see(capability, why)
        return None
    visibility.sees(capability)
    value = _local(value)
    return float(value.item()) if value.is_cpu else value.detach().clone()


def is_tensor(value: object) -> bool:
    """Return True for a tensor of torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_plain_tensor(value: object) -> bool:
    """Return True for a tensor of torch that holds all its elements, unlike a DTensor."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    # The first test spares the others, and a failed search for an attribute.
    return type(value) is torch.Tensor or (
        isinstance(value, torch.Tensor) and not hasattr(value, "placements")
    )


def _obstacle(value: Any) -> Unseen | None:
    plain = is_plain_tensor(value)
    if not plain and not is_tensor(value):
        return Unseen.UNKNOWN_FORMAT
    if value.numel() != 1:
        return Unseen.SEVERAL_ELEMENTS
    if not plain and not all(each.is_replicate() for each in value.placements):
        return Unseen.COLLECTIVE
    if value.is_cpu or value.is_cuda:
        return None
    return Unseen.DEVICE


def _local(value: Any) -> Any:
    """Return this rank's part of a tensor. A DTensor that records gradients would make a node for it."""
    if is_plain_tensor(value) or not hasattr(value, "to_local"):
        return value
    with sys.modules["torch"].no_grad():
        return value.to_local()


def _device(value: Any) -> Any:
    return None if isinstance(value, float) else value.device


def _sum(values: list[Any], *, in_32_bits: bool = False) -> Any:
    """Add up; `in_32_bits` gives, bit for bit, what a loop gets that adds up its tensors as they come."""
    total = values[0]
    for each in values[1:]:
        total = total + each
        if in_32_bits and isinstance(total, float):
            total = ctypes.c_float(total).value
    return total


def _total_norm(norms: list[Any]) -> Any:
    """Return the norm; of gradients clipped in groups by norms of their own, the root of the sum of squares.

    Groups that are clipped by one norm, such as those of several meshes, share its memory.
    """
    places = {_place(each): each for each in norms} if len(norms) > 1 else dict(enumerate(norms))
    values = [_readable(each, Capability.GRADIENT_NORM) for each in places.values()]
    if not values or any(each is None for each in values):
        return None
    if len(values) == 1:
        return values[0]
    if all(isinstance(each, float) for each in values):
        return math.hypot(*values)
    return _sum([each.reshape(()) * each.reshape(()) for each in values]).sqrt()


def _place(value: Any) -> int:
    local = _local(value)
    return int(local.data_ptr()) if is_tensor(local) else id(value)


values = Values()
"""Those of this process."""


SAMPLES = "samples"
_INPUTS, _MASK = "input_ids", "attention_mask"
_MOST_TENSORS = 64


def amounts_of(batch: object) -> dict[str, float]:
    """Map units of work to amounts, of a data loader's batch. Empty, with a note, if it does not tell.

    samples: the first dimension of `input_ids`, else the one on which all tensors of the batch agree.
    tokens: the elements of `input_ids` without those that `attention_mask` leaves out. Unknown if the mask is
    on a device.
    """
    amounts: dict[str, float] = {}
    inputs: Any = batch.get(_INPUTS) if isinstance(batch, Mapping) else None
    if is_plain_tensor(inputs) and inputs.dim() > 0:
        amounts[SAMPLES] = float(inputs.shape[0])
        tokens = _tokens(inputs, batch.get(_MASK))  # type: ignore[attr-defined]
        if tokens is not None:
            amounts[TOKENS] = tokens
    else:
        first = {shape[0] for each in _tensors(batch) if (shape := each.shape)}
        if len(first) == 1:
            amounts[SAMPLES] = float(first.pop())
    if amounts:
        visibility.sees(Capability.WORK)
    elif not visibility.has_seen(Capability.WORK):
        visibility.cannot_see(Capability.WORK, Unseen.UNKNOWN_FORMAT)
    return amounts


def _tokens(inputs: Any, mask: Any) -> float | None:
    if mask is None:
        return float(inputs.numel())
    if not is_plain_tensor(mask) or mask.shape != inputs.shape or not mask.is_cpu:
        return None
    return float((mask != 0).sum().item())


def _tensors(batch: object) -> Iterator[Any]:
    """Yield tensors of the batch: the batch itself, its items, and the values of mappings among them.

    Lists inside of it are left out: their tensors may be one for each sample.
    """
    items = [batch] if is_plain_tensor(batch) or isinstance(batch, Mapping) else batch
    if not isinstance(items, (list, tuple)):
        return
    for each in items[:_MOST_TENSORS]:
        if is_plain_tensor(each):
            yield each
        elif isinstance(each, Mapping):
            yield from (value for value in list(each.values())[:_MOST_TENSORS] if is_plain_tensor(value))
