"""The table in docs/security.md of what an agent shows by its rights, held against real agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from support.deploy.chart import container
from support.deploy.tiers import AGENT, FEATURES, KERNEL_LOG, PROGRAMS, Node, Seen, owned, shared_node, watch
from support.deploy.unit import DROP_INS, directives
from support.paths import ROOT
from support.processes.users import ALICE, as_user, node_directory, run_as

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

SHOWS, SAYS = "## What each privilege shows", "| what is missing | what says so |"
_PAGE = (ROOT / "docs" / "security.md").read_text()


class Rights(NamedTuple):
    """Of an agent. capabilities: None for all that root has."""

    user: int
    capabilities: tuple[str, ...] | None


GRANTED = {each.stem: tuple(directives(each)["AmbientCapabilities"][0].split()) for each in DROP_INS}
"""Drop-in of the unit -> its capabilities."""
TIERS = {
    "own user": Rights(AGENT, ()),
    **{f"`{name}`": Rights(AGENT, capabilities) for name, capabilities in GRANTED.items()},
    "all of them": Rights(AGENT, tuple({each for some in GRANTED.values() for each in some})),
    "root without capabilities": Rights(0, ()),
    "root": Rights(0, None),
}
"""The columns of the table."""


def rows(beginning: str) -> Iterator[list[str]]:
    """The cells of the first table from here on, row by row, without the line below its head."""
    lines = _PAGE[_PAGE.index(beginning) :].splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("| "))
    for at, line in enumerate(lines[first:]):
        if not line.startswith("| "):
            return
        if at != 1:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def shown(tier: str) -> Mapping[str, bool]:
    """A column: what is shown, and whether the table says that this tier shows it."""
    head, *body = rows(SHOWS)
    return {cells[0]: cells[head.index(tier)] == "yes" for cells in body}


def kernel_log_is_closed() -> bool:
    """True where reading the kernel log takes CAP_SYSLOG, and this machine has one."""
    restricted = Path("/proc/sys/kernel/dmesg_restrict")
    return restricted.exists() and restricted.read_text().strip() == "1" and os.access("/dev/kmsg", os.R_OK)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    missing = [each for each in ("setpriv", "unshare", "py-spy") if not shutil.which(each, path=PROGRAMS)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    with shared_node() as running:
        yield running


def test_table_names_everything() -> None:
    """Each tier that can be chosen has a column, and each feature that the tests look for a row."""
    head, *body = rows(SHOWS)
    assert head[1:] == list(TIERS)
    assert [cells[0] for cells in body] == list(FEATURES)
    assert {cell for cells in body for cell in cells[1:]} == {"yes", ""}


@pytest.mark.parametrize("tier", TIERS)
def test_tier(tier: str, node: Node) -> None:
    """An agent shows what the table promises for its rights, and no more; what it lacks it says."""
    rights = TIERS[tier]
    name = tier.strip("`").replace(" ", "-")
    seen = watch(node, owned(node.folder / name, rights.user, 0o700), *rights)
    promised, found = dict(shown(tier)), {each: shows(seen) for each, shows in FEATURES.items()}
    if not kernel_log_is_closed():
        del promised[KERNEL_LOG], found[KERNEL_LOG]
    assert found == promised
    if tier == "own user":
        assert_says_what_is_missing(seen, promised)


def assert_says_what_is_missing(seen: Seen, promised: Mapping[str, bool]) -> None:
    _, *body = rows(SAYS)
    says = {missing: text.split("`")[1::2] for missing, text in body}
    assert {each for each, there in promised.items() if not there} <= says.keys()
    for missing in says.keys() & promised.keys():
        for part in says[missing]:
            assert part in seen.text, f"{missing}: {part}"


@pytest.mark.parametrize(
    ("drop_in", "switch"), [("black-boxes", "blackBoxes"), ("user-files", "userFiles"), ("stacks", "stacks")]
)
def test_unit_and_chart_grant_the_same(drop_in: str, switch: str) -> None:
    """A tier has the same capabilities under systemd and in Kubernetes, so one table holds for both."""
    added = container({"privileges": {switch: True}})["securityContext"]["capabilities"]["add"]
    assert [f"CAP_{each}" for each in added] == list(GRANTED[drop_in])


def test_note_of_a_kill(node_directory: Path) -> None:
    """It takes `black-boxes` to leave the kernel's line beside a box, as a file of the box's user: no other
    file there counts."""
    run_as(ALICE, node_directory, "box('job', 0)")
    box = node_directory / "job" / "0.blackbox"
    code = "import sys, pathlib; from rankwatch_agent.training.life.ends import write_kill as write\n"
    code += "write(pathlib.Path(sys.argv[1]), int(sys.argv[2]), 'Out of memory: Killed process 7')"
    rights = as_user(AGENT, GRANTED["black-boxes"])
    subprocess.run([*rights, sys.executable, "-c", code, str(box), str(ALICE)], check=True)
    (note,) = box.parent.glob("*.killed")
    assert note.lstat().st_uid == ALICE
    assert {each.name for each in box.parent.iterdir()} == {box.name, note.name}
