"""The record of capabilities: what of the loop is visible, in the black box and on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankwatch
from rankwatch.automatic.visibility import Visibility
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.conventions.vocabulary import Capability, Unseen
from support.training.blackbox import box, now


def capabilities(directory: Path) -> dict[Capability, Unseen | None]:
    return dict(now(box(directory)).capabilities)


def test_record(run: rankwatch.Run, tmp_path: Path) -> None:
    """Unknown until something is said; the last word counts, and survives the end."""
    assert capabilities(tmp_path) == {}
    run.sees(Capability.STEPS)
    run.cannot_see(Capability.LOSS, Unseen.DEVICE)
    run.cannot_see(Capability.WORK, Unseen.UNKNOWN_FORMAT)
    run.sees(Capability.WORK)
    run.finish()
    found = {Capability.STEPS: None, Capability.LOSS: Unseen.DEVICE, Capability.WORK: None}
    assert capabilities(tmp_path) == found


def test_every_pair(run: rankwatch.Run, tmp_path: Path) -> None:
    for capability in Capability:
        for why in Unseen:
            run.cannot_see(capability, why)
            assert capabilities(tmp_path)[capability] is why
    assert len(Capability) <= layout.MAX_CAPABILITIES


def test_foreign_words(run: rankwatch.Run, tmp_path: Path) -> None:
    """Words that this version does not know, from a newer writer or a hostile one, are unknown."""
    for position, word in enumerate((-1, layout.UNSEEN + len(Unseen), 2**62, layout.SEEN)):
        run._writer.integers[Now.CAPABILITIES + position] = word
    assert capabilities(tmp_path) == {Capability.BACKWARD: None}


def test_table_is_free() -> None:
    """The table overlaps no other word."""
    words = range(Now.CAPABILITIES, Now.CAPABILITIES + layout.MAX_CAPABILITIES)
    assert [each for each in Now if each in words] == [Now.CAPABILITIES]


def test_sentences() -> None:
    assert len({each.sentence for each in Unseen}) == len(Unseen)


def test_before_the_run(run: rankwatch.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is known before the box opens is written into it. Rank 0 says what matters, once."""
    visibility = Visibility()
    visibility.cannot_see(Capability.LOSS, Unseen.REPLACED)
    visibility.cannot_see(Capability.GRADIENT_NORM, Unseen.COLLECTIVE)
    visibility.failed("watch a function", KeyError("x"))
    visibility.attach(run)
    visibility.sees(Capability.STEPS)
    visibility.missing()
    visibility.say()
    visibility.say()
    assert capabilities(tmp_path) == {
        Capability.LOSS: Unseen.REPLACED,
        Capability.GRADIENT_NORM: Unseen.COLLECTIVE,
        Capability.STEPS: None,
        Capability.DATA_WAIT: Unseen.NOT_CALLED,
    }
    assert capsys.readouterr().err == (
        f"rankwatch: not visible: data_wait, because {Unseen.NOT_CALLED.sentence}; "
        f"loss, because {Unseen.REPLACED.sentence}\n"
    )
    assert now(box(tmp_path)).errors == 1
