"""The container file, read as a reviewer would."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from support.deploy.chart import DEPLOY, ROOT, container, pod

pytestmark = pytest.mark.process

TEXT = (DEPLOY / "Containerfile").read_text()
LINES = [
    re.sub(r"\s+", " ", line).strip()
    for line in re.sub(r"(?m)^#.*\n", "", TEXT).replace("\\\n", " ").splitlines()
    if line.strip()
]


def instructions(name: str) -> list[str]:
    """Arguments of an instruction, wherever it stands."""
    return [line.removeprefix(f"{name} ") for line in LINES if line.startswith(f"{name} ")]


def final_stage() -> list[str]:
    """What the image is made of."""
    last = max(index for index, line in enumerate(LINES) if line.startswith("FROM "))
    return LINES[last:]


def test_stages() -> None:
    """What builds stays behind: the image gets the finished environment and runs nothing to make it."""
    assert len(instructions("FROM")) == 2
    assert not [line for line in final_stage() if line.startswith(("RUN ", "ADD "))]
    assert [line for line in final_stage() if line.startswith("COPY ")] == [
        "COPY --from=build /opt/rankwatch /opt/rankwatch"
    ]


def test_user() -> None:
    """That of the chart, as a number: Kubernetes cannot see from a name that it is not root."""
    (user,) = instructions("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    security = pod()["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"


def test_hashes_are_checked() -> None:
    """Whatever comes over the network has a hash that is written down, and runs no code to be installed. No
    cache of pip stays."""
    installs = [part for line in instructions("RUN") for part in line.split("&&") if "/pip " in part]
    fetching = [each for each in installs if "--no-deps" not in each]
    assert len(fetching) == 2
    for each in fetching:
        assert "--require-hashes --only-binary :all: --requirement requirements" in each
    assert TEXT.count("/pip ") == TEXT.count("--no-cache-dir")


def locked(name: str) -> dict[str, str]:
    """Package -> version, of a file with hashes."""
    found = {}
    for each in re.sub(r"(?m)^#.*\n", "", (DEPLOY / name).read_text()).replace(" \\\n", "").splitlines():
        package, version, *hashes = re.split("==| +", each)
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes), each
        found[package] = version
    return found


def test_locked_versions() -> None:
    """Those that CI tests with, and all that the extras and the build name; `make lock` writes them."""
    pinned = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    for file, needed in (
        ("requirements.txt", [*extras["agent"], *extras["evidence"]]),
        ("requirements-build.txt", project["build-system"]["requires"]),
    ):
        versions = locked(file)
        assert {each.partition(">")[0] for each in needed} <= set(versions)
        assert versions.items() <= pinned.items()


def test_contents() -> None:
    """The agent and what evidence needs, no torch and nothing from a URL; the base image has a version."""
    assert not re.search(r"torch|\bADD\b|https?:|curl|wget|apt-get", TEXT)
    (base,) = instructions("ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=\S+:3\.11-slim[\w.-]*", base)


def test_entry_point() -> None:
    """The agent, on the port of the chart, which adds no argument."""
    (entry,) = instructions("ENTRYPOINT")
    assert json.loads(entry) == ["rankwatch", "agent"]
    assert instructions("EXPOSE") == [str(container()["ports"][0]["containerPort"])]
    assert not {"args", "command"} & set(container())


def copied() -> set[str]:
    """What the checkout must give."""
    return {word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]}


def test_build_context() -> None:
    """Whatever is copied exists, and the ignore file sends nothing else to the builder."""
    assert all((ROOT / name).exists() for name in copied())
    kept = (DEPLOY / "Containerfile.dockerignore").read_text().split()
    assert {f"!{name}" for name in copied()} == {line for line in kept if line.startswith("!")}


def test_the_wheel_finds_its_parts() -> None:
    """Packages, data files and readme are copied."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["shared-data"], project["project"]["readme"], "pyproject.toml"}
    assert {name.partition("/")[0] for name in needed} <= copied()


def test_what_evidence_needs() -> None:
    """Image and unit hold NumPy for the verdict and py-spy for the stacks, in the versions of CI.

    Evidence has no page, and so no need of the templates of one.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {each for each in extras["diagnosis"] if not each.startswith("jinja2")}
    assert set(extras["evidence"]) >= needed - set(extras["agent"])
    names = {each.partition(">")[0] for each in extras["evidence"]}
    assert "py-spy" in names
    assert names <= set(locked("requirements.txt"))
    assert "--requirement agent/deploy/requirements.txt" in (ROOT / "docs" / "systemd.md").read_text()
