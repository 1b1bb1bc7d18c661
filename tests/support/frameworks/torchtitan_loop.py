"""A training that reports to torchtitan's own structured logger.

torchtitan_loop.py OUTPUT: the folder of its lines.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from torchtitan.observability import structured_logger

from support.frameworks import torchtitan_records


def nothing(**_: Any) -> None:
    """A factory that a user might list."""


if __name__ == "__main__":
    structured_logger.init_structured_logger(source="training", output_dir=sys.argv[1])
    torchtitan_records.train(
        span=structured_logger.log_trace_span,
        scalar=structured_logger.log_trace_scalar,
        set_step=structured_logger.set_step,
        batches=itertools.repeat(10),
        steps=5,
        accumulation=2,
        validate_every=4,
    )
