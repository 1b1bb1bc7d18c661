"""`torchrun --nproc-per-node 4 -m rankwatch_trainer`, or `python -m rankwatch_trainer` for one rank."""

import sys

from rankwatch_trainer.cli import main

if __name__ == "__main__":
    sys.exit(main())
