"""The joins on GPUs that docs/hardware.md prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwatch.conventions.metrics import metric
from support.alerts.rule_test import check
from support.paths import ROOT

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "hardware.md"


def test_joins(
    tmp_path: Path,
) -> None:
    """Each owner gets the value of its GPU, and a rank on an instance gets none."""
    of_pods, of_ranks = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    on = 'cluster="c",node="n",gpu'
    owners = [
        f'{{{on}="GPU-1",pod_name="a"}}',
        f'{{{on}="GPU-1",pod_name="b"}}',
        f'{{{on}="GPU-1",mig="MIG-1",pod_name="c"}}',
    ]
    pod_info, rank_info = metric("rankwatch_gpu_pod_info").name, metric("rankwatch_rank_gpu_info").name
    heat = metric("rankwatch_gpu_temperature_celsius").name
    series = {
        **{f"{pod_info}{each}": "1" for each in owners},
        f'{metric("rankwatch_gpu_power_watts").name}{{{on}="GPU-1"}}': "300",
        f'{rank_info}{{{on}="GPU-1",rank="0"}}': "1",
        f'{rank_info}{{{on}="MIG-1",rank="1"}}': "1",
        f'{heat}{{{on}="GPU-1",sensor="core"}}': "60",
        f'{heat}{{{on}="GPU-1",sensor="memory"}}': "70",
    }
    expected = {
        of_pods: [{"labels": each, "value": 300} for each in owners],
        of_ranks: [{"labels": f'{{{on}="GPU-1",rank="0"}}', "value": 60}],
    }
    case = {
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "0m", "exp_samples": samples} for expr, samples in expected.items()
        ],
    }
    check((case,), (), "1m", tmp_path)
