"""Command-line flags made from the fields of the configuration: same names, types, defaults and words."""

from __future__ import annotations

import argparse
import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults.specification import describe_faults


def parse_config(arguments: Sequence[str]) -> TrainerConfig:
    """The configuration that the command line asks for. Raises UsageError with one sentence."""
    parser = _Parser(
        prog="rankwatch_trainer",
        description="Trains a small GPT on the source of Python's standard library, with faults on demand.",
        epilog=describe_faults(),
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the lines of the epilog
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    words, types = _field_docstrings(TrainerConfig), get_type_hints(TrainerConfig)
    for field in fields(TrainerConfig):
        _add_flag(parser, field, types[field.name], words[field.name])
    given = vars(parser.parse_args(arguments))
    if "fault" in given:
        given["fault"] = tuple(given["fault"])
    return TrainerConfig.for_device(**given)


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one sentence, where argparse prints the usage too and exits."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _add_flag(parser: argparse.ArgumentParser, field: Field[Any], kind: Any, words: str) -> None:
    flag = "--" + field.name.replace("_", "-")
    text = words.replace("%", "%%") + ("" if field.default in (None, (), False) else f" [{field.default}]")
    if kind is bool:
        parser.add_argument(flag, action="store_true", help=text)
    elif get_origin(kind) is Literal:
        parser.add_argument(flag, choices=get_args(kind), help=text)
    elif get_origin(kind) is tuple:
        parser.add_argument(flag, action="append", metavar="SPEC", help=text)
    elif kind in (int, float):
        parser.add_argument(flag, type=kind, metavar="N" if kind is int else "X", help=text)
    else:
        parser.add_argument(flag, type=Path, metavar="PATH", help=text)


def _field_docstrings(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass; Python keeps them in the source only."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docstrings = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            docstrings[statement.target.id] = str(following.value.value)
    return docstrings
