"""`python -m rankwatch_cli` is the `rankwatch` command."""

import sys

from rankwatch_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
