"""What is scarce is shared between owners."""

from __future__ import annotations

from rankwatch_agent.runtime.turns import Places, excess, in_turns


def test_excess() -> None:
    """The owner with most loses, the first items first; an owner with few keeps all of them."""
    items = ["b0", "a0", "a1", "a2", "b1", "c0"]
    assert excess(items, owner=lambda each: each[0], most=6) == []
    assert excess(items, owner=lambda each: each[0], most=4) == ["a0", "b0"]
    assert excess(items, owner=lambda each: each[0], most=0) == ["a0", "b0", "a1", "a2", "b1", "c0"]


def test_excess_by_size() -> None:
    """What counts is how much an owner has, not in how many items."""
    sizes = {"a0": 10, "b0": 2, "b1": 2, "b2": 2}
    assert excess(sizes, owner=lambda each: each[0], most=8, size=sizes.__getitem__) == ["a0"]
    assert excess(sizes, owner=lambda each: each[0], most=5, size=sizes.__getitem__) == ["a0", "b0"]


def test_places() -> None:
    """Whoever comes late finds places, and all together get at most twice as many."""
    places = Places(100)
    assert sum(places.take("a") for _ in range(1000)) == 100
    assert sum(places.take("b") for _ in range(1000)) == 25
    assert sum(places.take(f"c{n}") for n in range(1000)) <= 75
    places.free()
    assert sum(places.take("a") for _ in range(1000)) == 100


def test_in_turns() -> None:
    """Owners with much leave room to those with little, however many there are of them."""
    much = [iter(["much"] * 1000) for _ in range(5)]
    found = in_turns([*much, iter(["little"] * 50)], most=1000, at_once=10)
    assert len(found) == 1000 and found.count("little") == 50
    assert in_turns([iter("ab"), iter("c")], most=10) == ["a", "b", "c"]
