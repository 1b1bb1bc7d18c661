"""A checkpoint that is a folder: its manifest, its shards, its files, and what must be there besides."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from rankwatch.checkpoint_files import manifest
from rankwatch.checkpoint_files.distributed import is_distributed, verify_distributed
from rankwatch.checkpoint_files.layouts import check_layout
from rankwatch.checkpoint_files.reading import MissingFileError, OpenFile, Pace, ReadError
from rankwatch.checkpoint_files.result import CheckpointError, Damage, Problem, Verification
from rankwatch.checkpoint_files.safetensors import verify_index
from rankwatch.checkpoint_files.single_file import verify_file

MOST_FILES = 1_000_000
_MANIFESTS = (manifest.NAME, "integrity.json")
_INDEX = re.compile(r".*\.(safetensors|bin)\.index\.json")


def verify_folder(root: Path, found: Verification, pace: Pace) -> None:
    """Verify all that lies in a folder. Raises CheckpointError if there is too much."""
    names = _list(root, found)
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(file)
    differing: dict[str, str] = {}
    covered = _verify_by_manifest(root, names, differing, found, pace)
    for folder, files in sorted(folders.items()):
        _verify_rest(root, folder, files, covered, differing, found, pace)
    named = {problem.file for problem in found.problems}
    for name, detail in differing.items():
        if name not in named:
            found.problem(name, Damage.FLIPPED, detail)
    check_layout(root, names, found, pace)


def _list(root: Path, found: Verification) -> list[str]:
    """Paths of all files in the folder; links to folders are refused, and not followed."""
    names = []
    for folder, folders, files in os.walk(root):
        for each in (Path(folder, name) for name in folders):
            if each.is_symlink():
                found.not_checked(
                    str(each.relative_to(root)), "it is a symbolic link to a folder, which is not followed"
                )
        names += [str(Path(folder, name).relative_to(root)) for name in files]
        if len(names) > MOST_FILES:
            raise CheckpointError(f"could not verify {root}: it holds more than {MOST_FILES} files")
    found.files = len(names)
    for name in names:
        try:
            found.bytes += (root / name).lstat().st_size
        except OSError:
            continue  # gone meanwhile; whatever needs it says so
    return sorted(names)


def _verify_by_manifest(
    root: Path, names: list[str], differing: dict[str, str], found: Verification, pace: Pace
) -> set[str]:
    """Hold files against the manifests that there are; returns those that are as they were written.

    Shards that differ go to `differing` with the reason: only `.metadata` knows the tensors in them.
    """
    covered: set[str] = set()
    for name in names:
        if name.rpartition("/")[2] not in _MANIFESTS:
            continue
        try:
            with OpenFile(root / name, root, pace) as file:
                if manifest.too_large(file.size):
                    raise CheckpointError(f"could not use {root / name}: it has {file.size} bytes")
                data = file.read(0, file.size)
            parse = manifest.parse if name.endswith(manifest.NAME) else manifest.parse_megatron
            given = parse(data, root / name)
        except ReadError as error:
            found.not_checked(name, str(error))
            continue
        except CheckpointError as error:
            found.problem(name, Damage.MALFORMED, str(error))
            continue
        found.format = found.format or ("manifest" if given.step is not None else "megatron")
        found.step = given.step if given.step is not None else found.step
        found.verified_bytes += len(data) if name.endswith(manifest.NAME) else 0
        covered.add(name)
        folder = name.rpartition("/")[0]
        for listed, expected in sorted(given.files.items()):
            path = f"{folder}/{listed}" if folder else listed
            if _matches(root, path, expected, given.algorithm, differing, found, pace):
                covered.add(path)
    return covered


def _matches(
    root: Path,
    name: str,
    expected: manifest.FileDigest,
    algorithm: str,
    differing: dict[str, str],
    found: Verification,
    pace: Pace,
) -> bool:
    """True if a file is as it was written; else what is wrong is named as exactly as its format allows."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with OpenFile(root / name, root, pace) as file:
            size = file.size
            if expected.bytes in (None, size):
                file.feed(digest)
                if digest.hexdigest() == expected.digest:
                    found.verified_bytes += size
                    return True
            detail = f"its {algorithm} differs from the manifest's"
            damage = Damage.FLIPPED
            if expected.bytes not in (None, size):
                detail = f"it has {size} bytes, the manifest says {expected.bytes}"
                damage = Damage.TRUNCATED if size < (expected.bytes or 0) else Damage.EXTRA
            if name.endswith(".distcp"):
                differing[name] = detail
                return False
            within = _localise(file, name, found)
    except MissingFileError as error:
        found.problem(name, Damage.MISSING, f"{error}, and the manifest lists it")
        return False
    except ReadError as error:
        found.problem(name, Damage.MISSING, str(error))
        return False
    for problem in within:
        found.problem(name, problem.damage, f"{problem.detail}; {detail}", problem.tensor)
    if not within:
        found.problem(name, damage, detail)
    return False


def _localise(file: OpenFile, name: str, found: Verification) -> list[Problem]:
    """What the format itself shows of a file that differs from its manifest."""
    only = Verification(found.path)
    verify_file(file, name, only)
    return only.problems


def _verify_rest(
    root: Path,
    folder: str,
    files: list[str],
    covered: set[str],
    differing: dict[str, str],
    found: Verification,
    pace: Pace,
) -> None:
    """Verify the files of one folder that no manifest covers."""
    prefix = f"{folder}/" if folder else ""
    used = {name.removeprefix(prefix) for name in covered if name.startswith(prefix)}
    used |= {problem.file.removeprefix(prefix) for problem in found.problems}
    left = [each for each in files if is_distributed([each]) and each not in used]
    if left or any(f"{prefix}{each}" in differing for each in files):
        found.format = found.format or "distributed"
        used |= verify_distributed(root / folder, root, files, found, pace)
    shards: dict[str, set[str]] = {}
    for name in files:
        if name in used or name in _MANIFESTS or manifest.parts_in([name]):
            continue
        try:
            with OpenFile(root / folder / name, root, pace) as file:
                shards[name] = verify_file(file, f"{prefix}{name}", found)
        except MissingFileError:
            found.problem(f"{prefix}{name}", Damage.MISSING, "it vanished while the checkpoint was read")
        except ReadError as error:
            found.not_checked(f"{prefix}{name}", str(error))
    for name in files:
        if _INDEX.fullmatch(name) and name not in used:
            _verify_index(root, folder, name, files, shards, found, pace)


def _verify_index(
    root: Path,
    folder: str,
    name: str,
    files: list[str],
    shards: dict[str, set[str]],
    found: Verification,
    pace: Pace,
) -> None:
    known = {file: held for file, held in shards.items() if file.endswith((".safetensors", ".bin"))}
    try:
        with OpenFile(root / folder / name, root, pace) as file:
            verify_index(file.read(0, file.size), f"{folder}/{name}".lstrip("/"), known, found)
    except ReadError as error:
        found.not_checked(name, str(error))
