"""`torchrun --nproc-per-node 4 -m rankwatch_trainer`, or `python -m rankwatch_trainer` for one rank."""

import os
import sys


def main() -> int:
    """Set what must be set before torch is imported, then train. Exit status 2 without torch."""
    # torch's C++ parts warn that the worker server listens, once per rank; they read this on import
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from rankwatch_trainer.cli import main as train
    except ModuleNotFoundError as cause:
        if cause.name != "torch":
            raise
        print(
            "rankwatch_trainer: could not import torch: "
            "in a clone of rankwatch, pip install '.[trainer]' brings it",
            file=sys.stderr,
        )
        return 2
    return train()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Past the interpreter's own end: there threads of torch 2.13's gloo backend sometimes call into what
    # is gone, and a run that finished well ends in SIGABRT (seen in 2 of some 80 ends of a rank).
    os._exit(status)
