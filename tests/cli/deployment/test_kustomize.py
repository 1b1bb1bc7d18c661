"""The kustomize tree is what the Python values print, switch by switch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from rankwatch_cli.deployment.kustomize import tree, write_tree
from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import KUBERNETES, by_identity, monitoring, printed, rendered


def overlay(folder: Path, components: Sequence[str]) -> Path:
    """A kustomization over base and monitoring with these components, in a copy of the tree."""
    shutil.copytree(KUBERNETES, folder / "tree")
    chosen = folder / "tree" / "overlays" / "chosen"
    chosen.mkdir()
    document = {
        "resources": ["../../base", "../../monitoring"],
        "components": [f"../../components/{name}" for name in components],
    }
    (chosen / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return chosen


def test_the_committed_tree_is_what_is_generated() -> None:
    """Byte for byte; overlays apart, no other file lies there. `make generate` rewrites it."""
    expected = tree(Values(), monitoring())
    found = {
        path.relative_to(KUBERNETES).as_posix(): path for path in KUBERNETES.rglob("*") if path.is_file()
    }
    assert {name for name in found if not name.startswith("overlays/")} == set(expected)
    for name, text in expected.items():
        assert found[name].read_text() == text, name


def test_the_plain_file_holds_the_objects_of_the_base() -> None:
    """kubectl apply --filename and --kustomize do the same."""
    plain = list(yaml.safe_load_all((KUBERNETES / "rankwatch-agent.yaml").read_text()))
    assert by_identity(plain) == by_identity(rendered(KUBERNETES / "base"))


@pytest.mark.parametrize("tiers", [(), *((name,) for name in TIERS), tuple(TIERS)], ids=lambda t: "+".join(t))
def test_kustomize_renders_what_python_prints(tiers: tuple[str, ...], tmp_path: Path) -> None:
    """For the base, for each component alone, and for all of them together."""
    assert by_identity(rendered(overlay(tmp_path, tiers))) == by_identity(printed(Values(tiers=tiers)))


def test_what_the_user_sets_wins_over_a_component(tmp_path: Path) -> None:
    """Although kustomize lays components over the base."""
    values = Values(settings={"disabled_collectors": "slurm"})
    write_tree(tree(values, monitoring()), tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["base", "monitoring"], "components": ["components/host-network"]})
    )
    expected = Values(settings=values.settings, tiers=("host-network",))
    assert by_identity(rendered(tmp_path)) == by_identity(printed(expected))


def test_the_sample_overlay_is_a_choice_of_values() -> None:
    """As a person would print it instead."""
    values = Values(
        tiers=("nvidia-runtime", "host-network", "pods", "tls", "token"),
        node_selector={"nvidia.com/gpu.present": "true"},
        image="registry.example.com/rankwatch-agent:0.1.0",
        cluster="lab",
    )
    assert by_identity(rendered(KUBERNETES / "overlays" / "gpu-cluster")) == by_identity(printed(values))
