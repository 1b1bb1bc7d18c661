"""A regular expression of the user ends, whatever it is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.reading import diagnose


def test_a_pattern_that_goes_back_and_forth_for_ever_is_given_up(tmp_path: Path) -> None:
    """With the line it could not get past; the signal it was ended by is left as it was."""
    path = tmp_path / "train.log"
    path.write_text("step 1 loss 2\n" * 1000 + "a" * 27 + "!\n" + "step 2 loss 2\n")
    pattern = r"step (?P<step>\d+) loss (?P<loss>\S+)|^(a+)+$"
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(UserError, match=r"--pattern takes more than 0\.02 s on the line 'aaaa"):
        diagnose(path, pattern=pattern, match_seconds=0.02)
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_long_file_is_not_given_up_whose_lines_are_short_work(tmp_path: Path) -> None:
    """The limit is that of a line: a hundred times as much for the file is no reason."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {step} loss 2 {'x' * 1000}\n" for step in range(20_000)))
    findings = diagnose(path, pattern=r"step (?P<step>\d+) loss (?P<loss>\S+)", match_seconds=0.02)
    assert findings.intake.losses == 20_000
