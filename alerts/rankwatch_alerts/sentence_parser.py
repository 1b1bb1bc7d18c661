"""An argument parser whose complaint is one sentence instead of a page of usage."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class SentenceParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` without abbreviations; a mistake prints one sentence and exits 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")
