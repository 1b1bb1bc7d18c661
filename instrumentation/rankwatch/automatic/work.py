"""Work of a batch, as far as the batch itself tells it: samples and tokens.

Shapes are looked at, and values only on the CPU, so that nothing waits for a device. Where the batch does not
tell, nothing is recorded: a wrong amount of work would hide a slow rank, or name a healthy one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch.automatic.training_state import is_plain_tensor
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import TOKENS, Capability, Unseen

SAMPLES = "samples"
_INPUTS, _MASK = "input_ids", "attention_mask"
_MOST_TENSORS = 64


def amounts_of(batch: object) -> dict[str, float]:
    """Unit of work -> amount, of a batch of a data loader. Empty, with a note, if the batch does not tell.

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
    """Tensors of the batch: the batch itself, its items, and the values of mappings among them.

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
