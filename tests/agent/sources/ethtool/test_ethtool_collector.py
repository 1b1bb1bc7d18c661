"""The collector of drivers' statistics, on the real ioctl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.ethtool.collector import EthtoolCollector
from rankwatch_agent.sources.network import InterfaceChoice
from support.servers.netns import Namespace, namespace_with_cable

IN_NAMESPACE = """
import fcntl, json, socket, struct, subprocess
from pathlib import Path
from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import NotApplicable
from rankwatch_agent.sources.ethtool.collector import EthtoolCollector
from rankwatch_agent.sources.network import InterfaceChoice
from rankwatch_agent.sources.ethtool.ioctl import SIOCETHTOOL, interface_request
from rankwatch_agent.sources.ethtool.collector import Statistic
from rankwatch_agent.runtime.supervision.schedule import Schedule

asked = []

def select(names):
    asked.append(len(names))
    each = metric("rankwatch_network_hardware_errors_total")
    return {at: Statistic(each, (name,), 0.5) for at, name in enumerate(names) if name == "peer_ifindex"}

def collector(sysfs="/sys", **options):
    choice = InterfaceChoice(include=("v*",))
    return EthtoolCollector(sysfs=Path(sysfs), choice=choice, schedule=Schedule(10, 5), **options)

def found(collector):
    try:
        return {series.labels[0]: series.value for series in collector.collect().series}
    except NotApplicable as error:
        return str(error)
"""
SETUP_CHANNELS = """
import array
def set_queues(count):
    channels = array.array("I", [0x3D, 0, 0, 0, 0, count, count, 0, 0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = interface_request("v0", channels.buffer_info()[0])
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
"""


@pytest.fixture(scope="module")
def cable() -> Iterator[Namespace]:
    with namespace_with_cable("ethtool") as namespace:
        yield namespace


def test_statistics_are_read_from_the_right_interface(cable: Namespace) -> None:
    """Each end of a cable tells the number of the other, here halved; names are asked for once."""
    answer = json.loads(
        cable.python(
            IN_NAMESPACE
            + """
ethtool = collector(select=select)
index = {name: int(Path(f"/sys/class/net/{name}/ifindex").read_text()) for name in ("v0", "v1")}
print(json.dumps([index, found(ethtool), found(ethtool), len(asked)]))
"""
        )
    )
    index, first, second, times = answer
    assert first == second == {"v0": index["v1"] / 2, "v1": index["v0"] / 2}
    assert times == 2


def test_names_are_read_again_when_their_number_has_changed(cable: Namespace) -> None:
    """A driver that was given more queues has its statistics at other places."""
    answer = json.loads(
        cable.python(
            IN_NAMESPACE
            + SETUP_CHANNELS
            + """
ethtool = collector(select=select)
set_queues(1)
before = found(ethtool)
set_queues(4)
print(json.dumps([before, found(ethtool), asked]))
"""
        )
    )
    before, after, asked = answer
    assert before == after
    assert len(asked) == 3
    assert asked[2] > asked[0]


def test_names_are_read_again_when_the_carrier_has_changed(cable: Namespace) -> None:
    """A link that comes up may bring a driver's other statistics."""
    answer = json.loads(
        cable.python(
            IN_NAMESPACE
            + """
ethtool = collector(select=select)
found(ethtool)
for name in ("v0", "v1"):
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
found(ethtool)
print(json.dumps(asked))
"""
        )
    )
    assert len(answer) == 4


def test_a_driver_without_pauses_and_discards_is_not_applicable(cable: Namespace) -> None:
    """veth counts neither under a name we know."""
    assert "no statistics of pauses" in cable.python(IN_NAMESPACE + "print(found(collector()))")


def test_an_interface_of_another_namespace_is_not_taken_for_ours(cable: Namespace, tmp_path: Path) -> None:
    """With the host's sysfs in a pod, the host's eth0 is not the pod's, even if both have the same number."""
    answer = cable.python(
        IN_NAMESPACE
        + f"""
there = Path({str(tmp_path)!r}) / "class/net/v0"
there.mkdir(parents=True)
for name in ("ifindex", "address", "carrier_changes"):
    (there / name).write_text((Path("/sys/class/net/v0") / name).read_text())
print(found(collector({str(tmp_path)!r}, select=select)))
(there / "carrier_changes").write_text("77")
(there / "address").write_text("02:00:00:00:00:99")
print(found(collector({str(tmp_path)!r}, select=select)))
(there / "address").write_text((Path("/sys/class/net/v0/address").read_text()))
(there / "ifindex").write_text("4711")
print(found(collector({str(tmp_path)!r}, select=select)))
"""
    ).splitlines()
    assert answer[0].startswith("{'v0': ")
    assert answer[1:] == ["v0 lies in another network namespace"] * 2


def test_files_of_sysfs_that_are_no_interface_are_passed_over(tmp_path: Path) -> None:
    """The bonding driver keeps a file among the interfaces."""
    (tmp_path / "class/net").mkdir(parents=True)
    (tmp_path / "class/net/bonding_masters").write_text("bond0\n")
    with pytest.raises(NotApplicable, match="nothing for ethtool to read"):
        EthtoolCollector(sysfs=tmp_path, choice=InterfaceChoice(), schedule=Schedule(10, 5)).collect()
