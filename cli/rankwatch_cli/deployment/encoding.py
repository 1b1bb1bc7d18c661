"""Manifests as YAML; the only module that needs PyYAML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import yaml

from rankwatch_cli.deployment.manifests import Manifest
from rankwatch_cli.deployment.names import Fields


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as literal blocks, and no anchors: the files are for people to read."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a list that occurs twice out twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(str, _represent_text)  # names of alerts are a StrEnum


def to_yaml(document: Fields | Sequence[Fields]) -> str:
    """One document: same input, same bytes."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


def to_stream(manifests: Iterable[Manifest]) -> str:
    """All manifests as one file, each behind its comment."""
    return "---\n".join(_comment(each.comment) + to_yaml(each.object) for each in manifests)


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())
