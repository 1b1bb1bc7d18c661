"""The text the trainer learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankwatch_trainer.corpus import read_corpus, standard_library
from rankwatch_trainer.errors import UsageError


def test_the_standard_library_gives_the_same_text_each_time() -> None:
    """Two ranks on one machine read the same bytes."""
    one, other = (read_corpus(standard_library(), 300_000) for _ in range(2))
    assert torch.equal(one.training, other.training)
    assert torch.equal(one.held_out, other.held_out)
    assert len(one.training) + len(one.held_out) == 300_000
    assert b"import" in bytes(one.training.tolist())


def test_files_come_in_the_order_of_their_names_and_packages_installed_later_not_at_all(
    tmp_path: Path,
) -> None:
    """The order does not depend on the file system; the last tenth is held out."""
    for name, content in {"b.py": "bbbb", "a.py": "aaaa", "sub/c.py": "cc", "notes.txt": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "later.py").write_text("later")
    corpus = read_corpus(tmp_path, 1000)
    assert bytes(corpus.training.tolist()) == b"aaaabbbbc"
    assert bytes(corpus.held_out.tolist()) == b"c"


def test_a_folder_without_source_files_is_told(tmp_path: Path) -> None:
    """An empty installation is the user's to mend."""
    with pytest.raises(UsageError, match=r"could not read the training text: no \*\.py file under"):
        read_corpus(tmp_path, 1000)
