"""`python -m rankwatch_agent` is the `rankwatch` command."""

import sys

from rankwatch_agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
