"""`rankwatch manifests`: print what runs the agent in Kubernetes, or write it as a kustomize tree."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.deployment.monitoring import Monitoring
from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values

_LONGEST_TIMEOUT_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    """Print or write the manifests; returns 0. Raises UserError."""
    given = _parser().parse_args(arguments)
    values = _values(given)
    # Only here: it needs PyYAML.
    from rankwatch_cli.deployment.encoding import to_stream
    from rankwatch_cli.deployment.kustomize import tree, write_tree
    from rankwatch_cli.deployment.manifests import agent_manifests, monitoring_manifests

    if given.output is None:
        manifests = agent_manifests(values)
        if given.monitoring:
            manifests += monitoring_manifests(values, load_monitoring(given.rules_config))
        print(to_stream(manifests), end="")
        return 0
    if values.tiers:
        raise UserError(
            "--tier goes with printed manifests: in the tree of --output each tier is a component"
        )
    try:
        for path in write_tree(tree(values, load_monitoring(given.rules_config)), given.output):
            print(path)
    except OSError as error:
        raise UserError(f"could not write --output {given.output}: {error.strerror or error}") from None
    return 0


def load_monitoring(rules_config: Path | None = None) -> Monitoring:
    """Rules and dashboards as their generators write them; raises UserError for a file that is wrong."""
    # Only here: rules and dashboards stand above the agent, and dashboards need an extra.
    from rankwatch.errors import SettingError
    from rankwatch_alerts import alert_groups, load_config, recording_groups
    from rankwatch_alerts.duration import duration
    from rankwatch_dashboards import dashboards
    from rankwatch_dashboards.encoding import to_json

    try:
        config = load_config(rules_config)
    except (SettingError, OSError) as error:
        raise UserError(f"could not use --rules-config {rules_config}: {error}") from None
    interval = config.scrape_interval_seconds
    return Monitoring(
        job=config.agent_job,
        interval=duration(interval),
        timeout=duration(min(interval, _LONGEST_TIMEOUT_SECONDS)),
        rules={
            "recording": [each.as_dict() for each in recording_groups(config)],
            "alerts": [each.as_dict() for each in alert_groups(config)],
        },
        dashboards={each["uid"]: to_json(each) for each in dashboards(config)},
    )


def _values(given: Namespace) -> Values:
    names = ("namespace", "monitoring_namespace", "image", "cluster", "listen")
    single = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    return Values(
        **single,
        image_pull_secrets=tuple(given.image_pull_secret),
        tiers=tuple(given.tier),
        tolerations=(*Values.tolerations, *given.toleration),
        node_selector=_pairs("--node-selector", given.node_selector),
        checkpoint_paths=tuple(given.checkpoint_path),
        settings=_pairs("--set", given.set),
        monitor_labels=_pairs("--monitor-label", given.monitor_label),
    )


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise UserError(f"could not use {flag} {text!r}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def _parser() -> SentenceParser:
    tiers = "\n".join(f"  {tier.name:<16} {tier.help}" for tier in TIERS.values())
    parser = SentenceParser(
        prog="rankwatch manifests",
        usage="rankwatch manifests [--tier NAME ...] [--monitoring] [--output DIR] [--VALUE TEXT ...]",
        description="Print what runs the agent on every node of a Kubernetes cluster, as YAML.",
        epilog=f"tiers:\n{tiers}",
    )
    _add_choices(parser)
    parser.add_argument("--monitoring", action="store_true", help="add PodMonitor, rules and dashboards")
    parser.add_argument(
        "--rules-config", type=Path, metavar="FILE", help="settings of the rules (docs/rules.md)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write a kustomize tree there, print nothing"
    )
    return parser


def _add_choices(parser: SentenceParser) -> None:
    for flag, metavar, text in (
        ("--namespace", "NAME", f"namespace of the agent; default: {Values.namespace}"),
        (
            "--monitoring-namespace",
            "NAME",
            "namespace of Prometheus, which alone may connect; default: monitoring",
        ),
        ("--image", "REFERENCE", "image with a tag or digest; default: rankwatch-agent:VERSION"),
        ("--cluster", "NAME", "value of the label cluster"),
        ("--listen", "HOST:PORT", f"[::]:PORT where pods have no IPv4 address; default: {Values.listen}"),
    ):
        parser.add_argument(flag, metavar=metavar, help=text)
    for flag, metavar, text in (
        ("--tier", "NAME", "switch, see below"),
        ("--image-pull-secret", "NAME", "Secret of the namespace with which the image is pulled"),
        ("--toleration", "KEY", "taint to tolerate besides nvidia.com/gpu"),
        ("--node-selector", "LABEL=VALUE", "label of the nodes to run on; default: all nodes"),
        ("--checkpoint-path", "PATH", "directory of the node to watch, mounted read-only"),
        ("--set", "SETTING=VALUE", "setting of the agent (docs/settings.md)"),
        ("--monitor-label", "NAME=VALUE", "label by which the Prometheus operator finds its objects"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{text}; repeatable")
