"""An argument parser whose complaint is one sentence instead of a page of usage."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rankwatch_agent.runtime.printable import printable


class SentenceParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` without abbreviations; a mistake prints one sentence and exits 2."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # An abbreviation that works today becomes ambiguous with the next flag that is added.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{printable(f'{self.prog}: {message}; see {self.prog} --help')}\n")
