"""`rankwatch manifests`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values
from rankwatch_cli.main import main
from support.deploy.manifests import KUBERNETES, monitoring, printed

HEADER_LINES = 1


def run(*arguments: str) -> int:
    return main(["manifests", *arguments])


def test_without_a_choice_it_prints_the_committed_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Save for the line that says where that comes from."""
    assert run() == 0
    committed = (KUBERNETES / "rankwatch-agent.yaml").read_text().splitlines(keepends=True)
    assert capsys.readouterr().out == "".join(committed[HEADER_LINES:])


def test_flags_are_values(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them."""
    flags = "--tier pods --tier tls --namespace watch --monitoring-namespace prom --image r/a:2 --cluster lab"
    flags += " --toleration pool --node-selector gpu=yes --checkpoint-path /data --set max_runs=7"
    flags += " --monitor-label release=prom --monitoring --listen [::]:9478 --image-pull-secret regcred"
    assert run(*flags.split()) == 0
    values = Values(
        tiers=("pods", "tls"),
        namespace="watch",
        monitoring_namespace="prom",
        image="r/a:2",
        cluster="lab",
        tolerations=("nvidia.com/gpu", "pool"),
        node_selector={"gpu": "yes"},
        checkpoint_paths=("/data",),
        settings={"max_runs": "7"},
        monitor_labels={"release": "prom"},
        listen="[::]:9478",
        image_pull_secrets=("regcred",),
    )
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == printed(values, monitoring())


def test_the_settings_of_the_rules_reach_the_scrape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Job and interval are those the rules count on."""
    (tmp_path / "rules.toml").write_text('agent_job = "gpu-nodes"\n')
    assert run("--monitoring", "--rules-config", str(tmp_path / "rules.toml")) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    (monitor,) = [each for each in objects if each["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert {"targetLabel": "job", "replacement": "gpu-nodes"} in endpoint["relabelings"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--tier", "everything"],
        ["--image", "a:latest"],
        ["--set", "max_runs"],
        ["--set", "max_runs=many"],
        ["--set", "slurm_job_map=/run/jobs"],
        ["--listen", "9478"],
        ["--rules-config", "/nonexistent/rules.toml", "--monitoring"],
        ["--output", "/proc/nowhere"],
        ["--tier", "pods", "--output", "tree"],
    ],
)
def test_a_mistake_is_one_sentence(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and no manifest."""
    assert run(*flags) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("rankwatch manifests: ") and told.err.count("\n") == 1


def test_help_tells_every_tier(capsys: pytest.CaptureFixture[str]) -> None:
    """With what it gives."""
    with pytest.raises(SystemExit):
        run("--help")
    told = capsys.readouterr().out
    assert all(tier.name in told and tier.help in told for tier in TIERS.values())


def test_without_pyyaml_the_extra_is_named() -> None:
    """One sentence, as for any other extra."""
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from rankwatch_cli.main import main; sys.exit(main(['manifests']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "in a clone of rankwatch, pip install '.[alerts]' brings it" in done.stderr
