"""The rules and joins on GPUs that docs/hardware.md prints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from rankwatch.conventions import metric
from support.paths import ROOT
from support.servers.prometheus import require

PAGE = ROOT / "docs" / "hardware.md"
_HEALTHY = {
    metric("rankwatch_gpus_expected").name: "8x10",
    metric("rankwatch_gpus_visible").name: "8x10",
    metric("rankwatch_gpu_xid_events_total").name + '{severity="critical"}': "0x10",
}


def test_alerts(
    tmp_path: Path,
) -> None:
    """promtool reads them as they are printed and plays a healthy and a broken node through them."""
    require("promtool")
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules)
    missing = {**_HEALTHY, metric("rankwatch_gpus_visible").name: "7x10"}
    broken = {**_HEALTHY, 'rankwatch_gpu_xid_events_total{severity="critical"}': "0x5 1x4"}
    tests = [
        _case(_HEALTHY, {"GpuMissing": [], "GpuXidCritical": []}),
        _case(missing, {"GpuMissing": [{}], "GpuXidCritical": []}),
        _case(broken, {"GpuMissing": [], "GpuXidCritical": [{"severity": "critical"}]}),
    ]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_joins(
    tmp_path: Path,
) -> None:
    """Each owner gets the value of its GPU, and a rank on an instance gets none."""
    require("promtool")
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
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"tests": [case]}))
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _case(series: dict[str, str], firing: dict[str, list[dict[str, str]]]) -> dict[str, object]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": "9m", "alertname": name, "exp_alerts": [{"exp_labels": each} for each in labels]}
            for name, labels in firing.items()
        ],
    }
