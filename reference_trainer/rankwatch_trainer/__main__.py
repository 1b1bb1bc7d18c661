"""`torchrun --nproc-per-node 4 -m rankwatch_trainer`, or `python -m rankwatch_trainer` for one rank."""

import os
import sys


def main() -> int:
    """Sets up what must be set before torch is imported, then trains. Exit status 2 without torch."""
    # torch's C++ parts warn that the worker server listens, once per rank; they read this on import
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from rankwatch_trainer.cli import main as train
    except ModuleNotFoundError as cause:
        if cause.name != "torch":
            raise
        print(
            "rankwatch_trainer: could not import torch: it is not installed, expected "
            "pip install 'rankwatch[trainer]'",
            file=sys.stderr,
        )
        return 2
    return train()


if __name__ == "__main__":
    sys.exit(main())
