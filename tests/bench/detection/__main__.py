"""`python -m tests.bench.detection`, from the root of the repository: how often the diagnosis is right."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
