"""Every object is one that Kubernetes knows, in the oldest and in the newest version at hand."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from rankwatch_cli.deployment.daemonset import daemonset
from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import printed

VERSIONS = ("1.27", kubernetes_validate.latest_version())
OPERATOR_KINDS = {"PodMonitor", "PrometheusRule"}


def validate(document: dict[str, Any]) -> None:
    """Unknown fields are errors."""
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def test_all_objects_fit_their_schemas() -> None:
    """With every tier and value; the operator's kinds have no schema here."""
    values = Values(
        tiers=tuple(TIERS),
        cluster="lab",
        checkpoint_paths=("/data",),
        node_selector={"pool": "gpu"},
        settings={"max_runs": "5"},
        image_pull_secrets=("regcred",),
    )
    kinds = set()
    for each in printed(values):
        kinds.add(each["kind"])
        if each["kind"] not in OPERATOR_KINDS:
            validate(each)
    assert kinds > OPERATOR_KINDS


@pytest.mark.parametrize("tier", [None, *TIERS])
def test_the_daemonset_of_each_tier_fits_its_schema(tier: str | None) -> None:
    """None leaves a field behind that the API does not know."""
    validate(dict(daemonset(Values(tiers=() if tier is None else (tier,)))))


def test_the_schema_would_find_a_mistake() -> None:
    """A misspelt field is refused."""
    wrong = dict(daemonset(Values()))
    wrong["spec"] = {**wrong["spec"], "updateStrategie": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)
