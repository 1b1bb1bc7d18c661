"""The one door through which the agent asks for a verdict: `python -m rankwatch_diagnosis.run DIR`.

It runs in a process of its own, because it computes with NumPy, which the agent never imports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json


def main(_as_owner: bool) -> None:
    """The agent's confined child."""
    sys.exit(print_verdict(sys.argv[1:]))


def print_verdict(arguments: Sequence[str]) -> int:
    """Print the verdict about the run in a directory as JSON; returns 0, or 2 with one sentence."""
    (directory,) = arguments
    try:
        verdict = diagnose_run(Path(directory))
    except UserError as error:
        print(printable(f"rankwatch diagnosis: {error}"), file=sys.stderr)
        return 2
    print(json.dumps(as_json(verdict), allow_nan=False))
    return 0


if __name__ == "__main__":
    main(False)
