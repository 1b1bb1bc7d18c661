"""`python -m tests.bench`, from the root of the repository: measure, print tables, write JSON."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
