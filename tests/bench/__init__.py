"""The benches: `python -m tests.bench`, from the root of the repository."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared test code, as under pytest
