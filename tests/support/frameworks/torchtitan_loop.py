"""A training that reports to torchtitan's own structured logger.

torchtitan_loop.py OUTPUT: the folder of its lines.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from torchtitan.observability import structured_logger

from support.frameworks import torchtitan_records


def nothing(**_: Any) -> None:
    """A factory that a user might list."""


if __name__ == "__main__":
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []

    def work() -> None:
        loss = model(torch.randn(8, 4)).square().mean() / 2
        losses.append(loss.item())
        loss.backward()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    structured_logger.init_structured_logger(source="training", output_dir=sys.argv[1])
    torchtitan_records.train(
        span=structured_logger.log_trace_span,
        scalar=structured_logger.log_trace_scalar,
        set_step=structured_logger.set_step,
        batches=itertools.repeat(10),
        steps=5,
        accumulation=2,
        validate_every=4,
        work=work,
        update=update,
    )
    print(json.dumps(losses))
