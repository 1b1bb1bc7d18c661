"""Series as other stores keep them: without markers of their end, late, or twice.

The node's own sums are written out: what `groups_of` makes of series of ranks would have no end either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig
from support.alerts.rule_test import cases_in, check, groups_of, without_keeping
from support.paths import ROOT

CONTENT = cases_in(ROOT / "tests" / "alerts" / "other_stores.yml")


@pytest.mark.process
@pytest.mark.parametrize("case", CONTENT["tests"], ids=lambda case: str(case["name"]))
def test_case(case: Mapping[str, Any], tmp_path: Path) -> None:
    _, *shipped = without_keeping(groups_of(RuleConfig()))
    check([case], shipped, CONTENT["evaluation_interval"], tmp_path, every_rule=True)
