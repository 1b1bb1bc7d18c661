"""The one door through which other processes ask for a verdict: `python -m rankwatch_diagnosis.run DIR`.

The agent asks so because it never imports NumPy, and `rankwatch ls` because a run may take for ever. It asks
about many: without DIR each line of standard input is a directory, as a JSON string.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json
from rankwatch_diagnosis.run.verdict import verdict_word

READY = "ready"
"""The first line that `print_words` prints."""


def main(_as_owner: bool) -> None:
    """Run as the agent's confined child."""
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


def print_words(directories: Iterable[str]) -> int:
    """Print for each directory a line with the verdict in a word, which is empty where there is none."""
    print(READY, flush=True)
    for each in directories:
        try:
            word = verdict_word(diagnose_run(Path(json.loads(each))))
        except UserError:  # its boxes changed meanwhile
            word = ""
        print(word, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(print_verdict(sys.argv[1:]) if sys.argv[1:] else print_words(sys.stdin))
