"""`python -m tests.bench`, from the root of the repository: measure, print tables, write JSON."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared test code, as under pytest

from .cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
