"""The docstrings under the fields of a dataclass, for --help and the documentation."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise


def field_help(cls: type) -> dict[str, str]:
    """Field name -> the string literal below it, read from the source of the class."""
    tree = ast.parse(inspect.getsource(cls))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for declared, below in pairwise(body.body):
        match declared, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found
