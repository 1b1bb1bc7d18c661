"""The strategic merge."""

from __future__ import annotations

from rankwatch_cli.deployment.merge import merged


def test_a_patch_adds_replaces_and_takes_away() -> None:
    """None takes a field away, deep inside as well, and is nothing where the field is missing."""
    base = {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}
    patch = {"a": 5, "b": {"d": None, "f": {"g": None}}, "e": None, "h": None}
    assert merged(base, patch) == {"a": 5, "b": {"c": 2, "f": {}}}


def test_elements_with_a_name_are_merged_and_others_replaced() -> None:
    """By the key that the API gives the list."""
    base = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "add": ["X"]}
    patch = {"env": [{"name": "C", "value": "4"}, {"name": "A", "value": "3"}], "add": ["Y"]}
    assert merged(base, patch) == {
        "env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}, {"name": "C", "value": "4"}],
        "add": ["Y"],
    }


def test_a_merge_leaves_both_sides_as_they_are() -> None:
    """Tiers are shared by every DaemonSet that is built."""
    base = {"containers": [{"name": "a", "env": [{"name": "X"}]}]}
    patch = {"containers": [{"name": "a", "env": [{"name": "Y"}]}]}
    merged(base, patch)
    assert base == {"containers": [{"name": "a", "env": [{"name": "X"}]}]}
    assert patch == {"containers": [{"name": "a", "env": [{"name": "Y"}]}]}
