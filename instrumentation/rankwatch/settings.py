"""Settings of a program, declared once as a dataclass and read from flags, environment and a TOML file.

A program declares a frozen, keyword-only dataclass whose fields have defaults. The string below a field is
the help of its flag. Each `read_...` function returns the settings of one source; `build` merges them:

    given = read_file(Config, path) | read_environment(Config, "APP_", os.environ) | read_flags(Config, flags)
    config = build(Config, given).values

Fields may be str, int, float, bool, Path, Path | None, a Literal of strings, a tuple of strings or of paths,
or a Mapping of names to numbers, strings or tables. A mistake raises SettingError, whose message is one
sentence for the user.

`import rankwatch` does not import this module: training needs none of it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import textwrap
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from rankwatch.errors import SettingError
from rankwatch.untrusted.text import printable

Config = TypeVar("Config")

_LONGEST_SHOWN = 200
"""Characters of a wrong value that an error repeats."""


class FieldError(SettingError):
    """The value of a field cannot be used. Names field, value, source and what is expected."""

    def __init__(self, field: str, value: object, expected: str, origin: str = "") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        source = f" from {origin}" if origin else ""
        super().__init__(f"could not use {field} = {_shown(value)}{source}: expected {expected}")


def expect(config: object, field: str, holds: bool, expected: str) -> None:
    """Raise FieldError for a field of `config` unless `holds`. `build` adds the source to the error."""
    if not holds:
        raise FieldError(field, getattr(config, field), expected)


class Setting(NamedTuple):
    """A value that one of the sources sets."""

    value: Any
    origin: str
    """The source, as errors and `to_toml` name it: `flag --node`, `file agent.toml`."""


@dataclass(frozen=True)
class Effective(Generic[Config]):
    """The settings in force, and where each came from."""

    values: Config
    origins: Mapping[str, str]
    """Field name -> source; `default` where no source sets the field."""


def build(cls: type[Config], settings: Mapping[str, Setting]) -> Effective[Config]:
    """Return the dataclass with these settings, and defaults for the others. Raises SettingError."""
    origins = {name: settings[name].origin if name in settings else "default" for name in field_names(cls)}
    try:
        values = cls(**{name: setting.value for name, setting in settings.items()})
    except FieldError as error:
        raise FieldError(error.field, error.value, error.expected, origins[error.field]) from None
    return Effective(values, origins)


def read_file(cls: type, file: Path) -> dict[str, Setting]:
    """Return the settings in a TOML file whose keys are fields. Raises SettingError."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"could not read config file {file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise SettingError(f"could not parse config file {file}: {error}") from None
    for name in table:
        _require_known(cls, name, f"key {name!r} in {file}")
    return {name: _read(cls, name, value, f"file {file}") for name, value in table.items()}


def read_environment(cls: type, prefix: str, environ: Mapping[str, str]) -> dict[str, Setting]:
    """Read the settings in variables that begin with `prefix`: `APP_NODE` sets `node`. Raises
    SettingError."""
    found = {}
    for variable, text in environ.items():
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            _require_known(cls, name, f"environment variable {variable}")
            found[name] = _read_text(cls, name, text, f"environment {variable}")
    return found


def read_flags(cls: type, flags: Mapping[str, Any]) -> dict[str, Setting]:
    """Return the settings among parsed flags, which `add_flags` declared. Raises FieldError.

    Leaves out flags that were not given (None) and flags that are no settings.
    """
    found = {}
    for name in field_names(cls):
        given, origin = flags.get(name), f"flag {flag_name(name)}"
        if given is not None:
            read = _read_text if isinstance(given, str) else _read
            found[name] = read(cls, name, given, origin)
    return found


def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of all settings, in the order of declaration."""
    return tuple(_kinds(cls))


def flag_name(field: str) -> str:
    """Return the flag that sets a field: `--max-runs` for max_runs."""
    return "--" + field.replace("_", "-")


def field_help(cls: type) -> dict[str, str]:
    """Return the string below each field, read from the source of the class and of those it extends."""
    found: dict[str, str] = {}
    for base in reversed(cls.__bases__):
        if base is not object:
            found |= field_help(base)
    declaration = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(declaration, ast.ClassDef)
    for declared, below in pairwise(declaration.body):
        match declared, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found


def add_flags(parser: argparse.ArgumentParser, cls: type, *, repeated: Collection[str] = ()) -> None:
    """Add a flag for each field, with help and default. A flag in `repeated` takes one item each time."""
    texts, defaults = field_help(cls), cls()
    for name, kind in _kinds(cls).items():
        default = getattr(defaults, name)
        shown = "" if default is None or default is False else f" Default: {toml_value(default)}"
        text = f"{texts[name]}{shown}".replace("%", "%%")
        flag = flag_name(name)
        if not kind.metavar:
            parser.add_argument(flag, dest=name, action="store_true", default=None, help=text)
        elif name in repeated:
            parser.add_argument(flag, dest=name, action="append", metavar="TEXT", help=text)
        else:
            parser.add_argument(flag, dest=name, metavar=kind.metavar, help=text)


def to_toml(values: object, origins: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the settings as a TOML file that loads to the same values, with the source of each as
    comment."""
    lines = []
    for name in field_names(type(values)):
        value = getattr(values, name)
        line = f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}"
        comment = " ".join(origins.get(name, "").split())
        lines.append(f"{line}  # {comment}\n" if comment else f"{line}\n")
    return "".join(lines)


def toml_value(value: Any) -> str:
    """Return a setting as the right-hand side of a line of TOML."""
    if isinstance(value, str | Path):
        return _quoted(str(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    return repr(value)


class SentenceParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` without abbreviations. A mistake prints one sentence and exits 2."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # An abbreviation that works today becomes ambiguous with the next flag that is added.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{printable(f'{self.prog}: {message}; see {self.prog} --help')}\n")


class _Kind(NamedTuple):
    """How fields of one type are read."""

    expected: str
    """Words of an error for what is expected."""
    metavar: str
    """The value of the flag in the help; empty for a switch."""
    read: Callable[[Any], Any]
    """From a value of TOML to the value of the field. Raises ValueError."""
    parse: Callable[[str], Any] = str
    """From the text of a flag or variable to what TOML would hold. Raises ValueError."""


@cache
def _kinds(cls: type) -> Mapping[str, _Kind]:
    hints = get_type_hints(cls)
    return {name: _kind(hints[name]) for name in cls.__dataclass_fields__}  # type: ignore[attr-defined]


def _kind(hint: Any) -> _Kind:
    if get_origin(hint) is not Literal:
        return _KINDS[hint]
    choices = get_args(hint)
    return _Kind(f"one of {', '.join(choices)}", "|".join(choices), lambda value: _choice(value, choices))


def _read_text(cls: type, name: str, text: str, origin: str) -> Setting:
    kind = _kinds(cls)[name]
    try:
        return Setting(kind.read(kind.parse(text)), origin)
    except ValueError:
        raise FieldError(name, text, kind.expected, origin) from None


def _read(cls: type, name: str, value: Any, origin: str) -> Setting:
    kind = _kinds(cls)[name]
    try:
        return Setting(kind.read(value), origin)
    except (ValueError, OverflowError):  # TOML's whole numbers have no bound, floats do
        raise FieldError(name, value, kind.expected, origin) from None


def _require_known(cls: type, name: str, what: str) -> None:
    if name not in _kinds(cls):
        close = get_close_matches(name, field_names(cls))
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise SettingError(f"could not use {what}: no setting has this name{meant}")


def _text(value: Any) -> str:
    # No path, host or label can hold NUL; flags and environment variables cannot bring one.
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(value)
    return value


def _choice(value: Any, choices: Collection[str]) -> str:
    if value not in choices:
        raise ValueError(value)
    return _text(value)


def _of(value: Any, *types: type) -> Any:
    """Return the value, if it is of one of these types; a bool is no number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(value)
    return value


def _number(value: Any) -> float:
    return float(_of(value, int, float))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _of(value, list)))


def _table(value: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    return {key: read(each) for key, each in _of(value, dict).items()}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(text: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    pairs = (part.partition("=") for part in _split(text))
    return {name.strip(): parse(each) for name, _, each in pairs}


_KINDS: Mapping[Any, _Kind] = MappingProxyType(
    {
        str: _Kind("a string", "TEXT", _text),
        int: _Kind("a whole number", "N", lambda value: _of(value, int), int),
        float: _Kind("a number", "X", _number, float),
        bool: _Kind("true or false", "", lambda value: _of(value, bool)),
        Path: _Kind("a string", "PATH", lambda value: Path(_text(value))),
        Path | None: _Kind("a string", "PATH", lambda value: Path(value) if _text(value) else None),
        tuple[str, ...]: _Kind("a list of strings", "A,B,...", _texts, _split),
        tuple[Path, ...]: _Kind(
            "a list of strings", "A,B,...", lambda value: tuple(map(Path, _texts(value))), _split
        ),
        Mapping[str, float]: _Kind(
            "a table of numbers (in flags and environment NAME=NUMBER,...)",
            "NAME=X,...",
            lambda value: _table(value, _number),
            lambda text: _pairs(text, float),
        ),
        Mapping[str, str]: _Kind(
            "a table of strings (in flags and environment NAME=TEXT,...)",
            "NAME=TEXT,...",
            lambda value: _table(value, _text),
            lambda text: _pairs(text, str.strip),
        ),
        Mapping[str, Mapping[str, Any]]: _Kind(
            "a table of tables",
            "TOML",
            lambda value: _table(value, lambda each: _of(each, dict)),
            lambda text: tomllib.loads(f"value = {text}")["value"],
        ),
    }
)


def _shown(value: object) -> str:
    """Show it short, on one line; paths as the text that was given."""
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    shown = repr(str(value) if isinstance(value, PurePath) else value)
    return shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "..."


def _quoted(text: str) -> str:
    # A basic string of TOML escapes as JSON does, except for DEL. Lone surrogates (from a path that
    # is not UTF-8) exist in neither.
    readable = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(readable, ensure_ascii=False).replace("\x7f", "\\u007f")
