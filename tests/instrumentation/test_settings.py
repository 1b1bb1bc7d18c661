"""Settings of a program, read from flags, environment and a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from rankwatch.errors import SettingError
from rankwatch.settings import (
    Effective,
    FieldError,
    SentenceParser,
    add_flags,
    build,
    expect,
    field_help,
    read_environment,
    read_file,
    read_flags,
    to_toml,
)
from support.processes.python import python


@dataclass(frozen=True, kw_only=True)
class Config:
    """One field of each type."""

    name: str = "n"
    """A name, 100 % text."""
    level: Literal["low", "high"] = "low"
    """A choice."""
    count: int = 1
    """A count."""
    seconds: float = 1.0
    """A time."""
    eager: bool = False
    """A switch."""
    directory: Path = Path("/d")
    """A path."""
    table: Path | None = None
    """A path that may be absent."""
    items: tuple[str, ...] = ()
    """Texts."""
    paths: tuple[Path, ...] = ()
    """Paths."""
    intervals: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name."""

    def __post_init__(self) -> None:
        expect(self, "count", self.count >= 1, "at least 1")


def load(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Effective[Config]:
    given = {} if file is None else read_file(Config, file)
    given |= read_environment(Config, "APP_", environ or {})
    return build(Config, given | read_flags(Config, flags or {}))


def write(directory: Path, text: str) -> Path:
    file = directory / "app.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    return file


def parser() -> SentenceParser:
    made = SentenceParser(prog="app")
    add_flags(made, Config, repeated=("items",))
    return made


def test_precedence(tmp_path: Path) -> None:
    """Flags win over the environment, the environment over the file; each value keeps its source."""
    file = write(tmp_path, 'name = "file"\ncount = 2\nseconds = 3\n')
    config = load({"name": "flag"}, {"APP_NAME": "environment", "APP_COUNT": "4", "OTHER": "x"}, file)
    found = {name: (getattr(config.values, name), config.origins[name]) for name in Config.__annotations__}
    assert {name: found[name] for name in ("name", "count", "seconds", "level")} == {
        "name": ("flag", "flag --name"),
        "count": (4, "environment APP_COUNT"),
        "seconds": (3.0, f"file {file}"),
        "level": ("low", "default"),
    }


def test_all_types(tmp_path: Path) -> None:
    """Every type can be given as text and in TOML. As text, lists and tables are written with commas."""
    texts = {
        "level": "high",
        "count": "8",
        "seconds": "60",
        "directory": "/a",
        "table": "/t",
        "items": "x, y",
        "paths": "/a,/b",
        "intervals": "ranks=0.5, host=10",
    }
    toml = 'level = "high"\ncount = 8\nseconds = 60\ndirectory = "/a"\ntable = "/t"\nitems = ["x", "y"]\n'
    toml += 'paths = ["/a", "/b"]\nintervals = {ranks = 0.5, host = 10}\n'
    expected = Config(
        level="high",
        count=8,
        seconds=60.0,
        directory=Path("/a"),
        table=Path("/t"),
        items=("x", "y"),
        paths=(Path("/a"), Path("/b")),
        intervals={"ranks": 0.5, "host": 10.0},
    )
    assert load(texts).values == expected
    assert load(environ={f"APP_{name.upper()}": text for name, text in texts.items()}).values == expected
    assert load(file=write(tmp_path, toml)).values == expected


def test_empty_path() -> None:
    """Empty text unsets an optional path."""
    assert load({"table": ""}).values.table is None


def test_printed_settings(tmp_path: Path) -> None:
    """They load to the same values, even with unusual text. A comment names the source of each value."""
    odd = {"name": 'n"1\n\x7f\\', "paths": "/a b,/ü", "intervals": "ranks=1e-05", "table": "/x"}
    config = load({**odd, "eager": True})
    assert load(file=write(tmp_path, to_toml(config.values, config.origins))).values == config.values
    assert "count = 1  # default\n" in to_toml(config.values, config.origins)
    assert "# table is not set\n" in to_toml(Config())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "'many'", "a whole number"),
        ("count", "0", "at least 1"),
        ("seconds", "'long'", "a number"),
        ("level", "'loud'", "one of low, high"),
        ("intervals", "'ranks'", "a table"),
    ],
)
def test_wrong_flag(name: str, value: str, expected: str) -> None:
    """The error names field, value, source and what is expected."""
    with pytest.raises(FieldError) as caught:
        load({name: value.strip("'")})
    sentence = f"could not use {name} = {value} from flag --{name}: expected {expected}"
    assert str(caught.value).startswith(sentence)


def test_long_wrong_value() -> None:
    """The error shows only a part of it, on one line."""
    with pytest.raises(FieldError) as caught:
        load({"count": "x" * 10_000 + "\n"})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "toml",
    [
        "nmae = 'typo'", "name = 1", "level = 1", "level = 'loud'", "count = true", "count = 1.5",
        "count = {}", "seconds = 'long'", "seconds = true", "seconds = 1" + 400 * "0", "eager = 1",
        "paths = '/a'", "paths = [1]", "intervals = 1", "intervals = {ranks = 'x'}",
        'directory = "a\\u0000b"', "name", "name = " + 10_000 * "[", "name = '\udcff'",
    ],
)  # fmt: skip
def test_wrong_file(tmp_path: Path, toml: str) -> None:
    """Unknown keys, wrong types and invalid TOML give one sentence that names the file."""
    with pytest.raises(SettingError, match=r"^could not .*app\.toml") as caught:
        load(file=write(tmp_path, toml))
    assert "\n" not in str(caught.value)


def test_unreadable_file(tmp_path: Path) -> None:
    """A missing file and a directory give one sentence that names the path."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SettingError, match=f"could not read config file {path}: "):
            load(file=path)


def test_unknown_names(tmp_path: Path) -> None:
    """The error names what may have been meant, and no more: some programs have 170 settings."""
    meant = r"^could not use environment variable APP_NMAE: no setting has this name; did you mean name\?$"
    with pytest.raises(SettingError, match=meant):
        load(environ={"APP_NMAE": "x"})
    unknown = r"could not use key 'xyz' in .*app\.toml: no setting has this name$"
    with pytest.raises(SettingError, match=unknown):
        load(file=write(tmp_path, "xyz = 1"))


def test_flags() -> None:
    """Every field has one. A switch takes no value, and a repeated flag takes one item each time. Flags not
    given stay unset."""
    given = parser().parse_args(["--eager", "--items", "a,b", "--items", "c", "--count", "2"])
    assert load(vars(given)).values == Config(eager=True, items=("a,b", "c"), count=2)
    assert load(vars(parser().parse_args([]))).values == Config()


def test_help() -> None:
    """It shows the docstring and the default of each field."""
    text = parser().format_help()
    for each in fields(Config):
        assert f"--{each.name}" in text
        assert field_help(Config)[each.name] in text
    assert '100 % text. Default: "n"' in text
    assert "--level low|high" in text


def test_invalid_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence explains it, and the status is 2. Abbreviations are refused, because a new flag could make
    them ambiguous."""
    for arguments in (["--coun", "1"], ["--bad\n\x1b"]):
        with pytest.raises(SystemExit) as stopped:
            parser().parse_args(arguments)
        assert stopped.value.code == 2
        printed = capsys.readouterr().err
        assert printed.startswith("app: unrecognized arguments: --")
        assert printed.endswith("; see app --help\n")
        assert printed[:-1].isprintable()


@pytest.mark.process
def test_training_does_not_import_it() -> None:
    """The module imports argparse, ast and tomllib, which a rank does not need."""
    code = "import rankwatch, sys; print('rankwatch.settings' in sys.modules, 'argparse' in sys.modules)"
    assert python(code, check=True).stdout == "False False\n"
