"""The table of XID codes, shipped and overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.sources.xid import SEVERITIES, SEVERITY_IN_LOG, XidMeaning, load_table


def test_shipped_table() -> None:
    """Codes that cost a node are critical and have an action; floods of 45 are not critical."""
    table = load_table(None)
    assert table[79].severity == "critical"
    assert table[79].action == "reboot_node"
    resets = (46, 62, 64, 95, 109, 119, 120, 140, 143, 171, 172, 175)
    assert {table[code].action for code in resets} == {"reset_gpu"}
    assert {table[code].action for code in (74, *SEVERITY_IN_LOG)} == {"check_nvlink"}
    assert {table[code].severity for code in (13, 31, 43, 45)} == {"application", "info"}
    newest = {code: table[code].severity for code in range(162, 177)}
    assert [code for code in newest if newest[code] == "critical"] == [167, 169, 171, 172, 173, 175]
    assert len(table) == 113
    assert {each.severity for each in table.values()} == set(SEVERITIES)


def test_override(tmp_path: Path) -> None:
    """It replaces single fields; the rest of an unknown code has defaults."""
    override = tmp_path / "xid.toml"
    override.write_text('109 = { severity = "warning" }\n[999]\nmeaning = "ours"\naction = "open_ticket"\n')
    shipped, table = load_table(None), load_table(override)
    assert table[109] == shipped[109]._replace(severity="warning")
    assert table[999] == XidMeaning("ours", "warning", "open_ticket")
    assert {code: table[code] for code in shipped if code != 109} == {
        code: shipped[code] for code in shipped if code != 109
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('79 = { severity = "fatal" }', "79.severity = 'fatal'.*expected one of info, application"),
        ('79 = { actions = "x" }', "79.actions = 'x'.*expected one of the fields"),
        ('79 = { action = "Call us" }', "79.action = 'Call us'.*expected one word"),
        ("79 = { meaning = 3 }", "79.meaning = 3.*expected a text"),
        ('79 = { meaning = "" }', "79.meaning"),
        ('79 = "critical"', "79 = 'critical'.*expected a table"),
        ('xid = { severity = "info" }', "key 'xid'.*expected an XID code"),
        ('0 = { severity = "info" }', "key '0'"),
        ('079 = { severity = "info" }', "key '079'"),
        ("79 = ", "could not parse"),
    ],
)
def test_wrong_override(tmp_path: Path, text: str, sentence: str) -> None:
    """The error names the file, the key and what was expected."""
    override = tmp_path / "xid.toml"
    override.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        load_table(override)
    assert str(override) in str(caught.value)


def test_missing_override(tmp_path: Path) -> None:
    """A table that the operator asked for is not silently left out."""
    with pytest.raises(UserError, match="could not read XID table"):
        load_table(tmp_path / "none.toml")
