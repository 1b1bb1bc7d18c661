"""`verify`: is this checkpoint what was written?

A checkpoint is one file, or a folder: its manifest, its shards, its files, and what must be there besides.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from rankwatch.untrusted.folders import Folder, NotRegularError, open_path
from rankwatch_checkpoints import manifest
from rankwatch_checkpoints.distributed import is_distributed, verify_distributed
from rankwatch_checkpoints.layouts import (
    TRACKER,
    check_layout,
    is_temporary,
    iteration_of,
    read_pointer,
    step_of,
)
from rankwatch_checkpoints.reading import (
    MOST_JSON_BYTES,
    MissingFileError,
    OpenFile,
    Pace,
    ReadError,
    TooMuchError,
)
from rankwatch_checkpoints.result import (
    CheckpointError,
    CheckpointGoneError,
    Damage,
    Problem,
    Verification,
)
from rankwatch_checkpoints.single_file import verify_file, verify_index
from rankwatch_checkpoints.tree import Tree, parent_of

_LATEST = "latest"
"""The pointer of DeepSpeed."""
_MOST_NAME_CHARACTERS = 128 << 20
"""Of the tensors in a folder that has an index of them."""
_LEAST_NAME_BYTES = 100
"""Memory that a name takes besides its characters."""
_MOST_TIMES_READ = 8
"""Each byte of a checkpoint is read at most three times, unless files share it."""
_MOST_COMPRESSED = 64
"""A file system can hold so many bytes in one, if they are not all zeros."""
_SMALL_BYTES = 1 << 30
_MANIFESTS = (manifest.NAME, "integrity.json")
_INDEX = re.compile(r".*\.(safetensors|bin)\.index\.json")


def verify(
    path: Path | str,
    *,
    bytes_per_second: float | Callable[[], float] | None = None,
    progress: Callable[[int], None] | None = None,
    keep_cached: bool = True,
    owner: int | None = None,
) -> Verification:
    """Verify a checkpoint, a file or a folder, of any format that rankwatch knows.

    Reads at most `bytes_per_second`, and calls `progress` with the bytes read so far. Executes no pickle,
    follows no link out of the checkpoint, and blocks on no FIFO or device. With `keep_cached=False` it reads
    what the disk holds, as far as the system can forget what it has in memory, and leaves nothing there.

    With the user id of an `owner` everything in it must belong to that user, and no pointer of Megatron or
    DeepSpeed may be a symbolic link or name one.

    Raises CheckpointGoneError if there is none, or no more, and CheckpointError for what can be none.
    """
    given = Path(path)
    try:
        given = Path(os.path.realpath(path))
        return _verify(given, Pace(bytes_per_second, progress, keep_cached=keep_cached), owner)
    except (FileNotFoundError, NotADirectoryError, MissingFileError):
        raise CheckpointGoneError(f"could not verify {given}: it is not there") from None
    except (ReadError, OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"could not verify {given}: {reason}") from None


def _verify(given: Path, pace: Pace, owner: int | None) -> Verification:
    found = Verification(given)
    try:
        folder = Folder.open(given)
    except NotADirectoryError:
        changed = _verify_single(given, found, pace, owner)
    else:
        changed = _verify_folder(folder, found, pace, owner)
    if not found.path.exists():
        raise CheckpointGoneError(f"could not verify {given}: it was deleted while it was read")
    if found.problems and changed:
        # Half of it is of another moment than the rest: what does not fit says nothing.
        detail = "it was written to, or is being deleted, while it was read"
        found.problems, found.more_problems = [Problem(".", Damage.UNFINISHED, detail)], 0
    return found


def _verify_single(path: Path, found: Verification, pace: Pace, owner: int | None) -> bool:
    """Verify a checkpoint that is one file; returns if it was written to meanwhile."""
    try:
        descriptor = open_path(os.fspath(path), owner=owner)
    except NotRegularError:
        raise CheckpointError(f"could not verify {path}: it is neither a file nor a folder") from None
    found.files, found.step = 1, step_of(path.name)
    with OpenFile(descriptor, pace) as file:
        found.bytes = file.size
        verify_file(file, path.name, found)
        if is_temporary(path.name):
            detail = "its name is one that its writer gives until it has finished"
            found.problem(path.name, Damage.UNFINISHED, detail)
        return file.changed()


def _verify_folder(folder: Folder, found: Verification, pace: Pace, owner: int | None) -> bool:
    """Verify a checkpoint that is a folder; returns if something in it was written to meanwhile."""
    with ExitStack() as stack:
        tree: Tree = stack.enter_context(Tree(folder, pace, owner))
        pointed = _pointed(tree)
        above: Tree | None = tree
        if pointed is not None:
            tree = stack.enter_context(pointed)
        else:
            above = parent_of(tree)
            if above is not None:
                stack.enter_context(above)
        found.path = tree.path
        before = tree.fingerprint()
        _verify_files(tree, above, found)
        return bool(found.problems) and tree.fingerprint() != before


def _pointed(tree: Tree) -> Tree | None:
    """Return the checkpoint that a folder's pointer names: Megatron's tracker file, DeepSpeed's `latest`.

    Raises CheckpointError for a folder that holds several checkpoints and no pointer.
    """
    tracked = read_pointer(tree, TRACKER)
    iteration = iteration_of(tracked)
    if iteration is not None or tracked == "release":
        return _existing(tree, tracked if iteration is None else f"iter_{iteration:07d}", TRACKER)
    name = read_pointer(tree, _LATEST)
    if name and "/" not in name and name not in (".", ".."):
        return _existing(tree, name, _LATEST)
    count = 0
    for each in tree.names():
        mode = tree.mode(each)
        if stat.S_ISREG(mode):
            return None
        count += step_of(each) is not None and (stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    if count > 1:
        raise CheckpointError(
            f"could not verify {tree.path}: it holds {count} checkpoints; `newest` finds the newest"
        )
    return None


def _existing(tree: Tree, name: str, pointer: str) -> Tree:
    said = f"could not verify {tree.path}: {pointer} names {name:.200}, which"
    if tree.owner is not None and stat.S_ISLNK(tree.mode(name)):
        raise CheckpointError(f"{said} is a symbolic link, and is not followed")
    try:
        return tree.inner(name)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a zero byte
        raise CheckpointError(f"{said} is not there") from None
    except OSError as error:
        raise CheckpointError(f"{said} could not be opened: {error.strerror}") from None


def _verify_files(tree: Tree, above: Tree | None, found: Verification) -> None:
    """Verify all that lies in a folder, itself in `above`. Raises CheckpointError if there is too much."""
    names = _list(tree, found)
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folder, _, file = name.rpartition("/")
        folders[folder].append(file)
    differing: dict[str, str] = {}
    covered = _verify_by_manifest(tree, names, differing, found)
    used: dict[str, set[str]] = defaultdict(set)
    for name in (*covered, *(problem.file for problem in found.problems)):
        folder, _, file = name.rpartition("/")
        used[folder].add(file)
    for folder, files in sorted(folders.items()):
        prefix = f"{folder}/" if folder else ""
        _verify_rest(tree, prefix, files, used[folder], differing, found)
    named = {problem.file for problem in found.problems}
    for name, detail in differing.items():
        if name not in named:
            found.problem(name, Damage.FLIPPED, detail)
    check_layout(tree, above, names, found)


def _list(tree: Tree, found: Verification) -> list[str]:
    """Return the paths of all files in the folder, and limit how much may be read of them."""
    names, most = [], 0
    shared: set[tuple[int, int]] = set()
    for name, status in tree.files(found.not_checked):
        names.append(name)
        found.bytes += status.st_size
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in shared:
            continue
        if status.st_nlink > 1:
            shared.add((status.st_dev, status.st_ino))
        most += min(status.st_size, _MOST_COMPRESSED * 512 * status.st_blocks)
    found.files = len(names)
    refusal = f"could not verify {tree.path}: its files share their bytes, and are read more than"
    tree.pace.limit(_MOST_TIMES_READ * most + _SMALL_BYTES, f"{refusal} {_MOST_TIMES_READ} times")
    return sorted(names)


def _verify_by_manifest(
    tree: Tree, names: list[str], differing: dict[str, str], found: Verification
) -> set[str]:
    """Hold files against the manifests that there are; returns those that are as they were written.

    Shards that differ go to `differing` with the reason: only `.metadata` knows the tensors in them.
    """
    covered: set[str] = set()
    for name in names:
        if name.rpartition("/")[2] not in _MANIFESTS:
            continue
        try:
            with tree.file(name) as file:
                data = file.read_all(MOST_JSON_BYTES)
            parse = manifest.parse if name.endswith(manifest.NAME) else manifest.parse_megatron
            given = parse(data, tree.path / name)
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
        listed = {str(PurePosixPath(folder, each)): expected for each, expected in given.files.items()}
        for path, expected in sorted(listed.items()):
            if _matches(tree, path, expected, given.algorithm, differing, found):
                covered.add(path)
    return covered


def _matches(
    tree: Tree,
    name: str,
    expected: manifest.FileDigest,
    algorithm: str,
    differing: dict[str, str],
    found: Verification,
) -> bool:
    """Return True if a file is as it was written; else name what is wrong as exactly as its format allows."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with tree.file(name) as file:
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
    except TooMuchError as error:
        found.not_read(name, str(error))
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
    """Return what the format itself shows of a file that differs from its manifest."""
    only = Verification(found.path)
    verify_file(file, name, only)
    return only.problems


def _verify_rest(
    tree: Tree,
    prefix: str,
    files: list[str],
    used: set[str],
    differing: dict[str, str],
    found: Verification,
) -> None:
    """Verify the files of one folder, to which `prefix` leads, that no manifest covers."""
    left = [each for each in files if is_distributed([each]) and each not in used]
    if left or any(f"{prefix}{each}" in differing for each in files):
        found.format = found.format or "distributed"
        used |= verify_distributed(tree, prefix, files, found)
    indices = [name for name in files if _INDEX.fullmatch(name) and name not in used]
    tensors = _Names()
    for name in files:
        if name in used or name in _MANIFESTS or manifest.parts_in([name]):
            continue
        try:
            with tree.file(f"{prefix}{name}") as file:
                names = verify_file(file, f"{prefix}{name}", found)
            if indices and name.endswith((".safetensors", ".bin")):
                tensors.keep(name, names)
        except MissingFileError:
            found.problem(f"{prefix}{name}", Damage.MISSING, "it vanished while the checkpoint was read")
        except TooMuchError as error:
            found.not_read(f"{prefix}{name}", str(error))
        except ReadError as error:
            found.not_checked(f"{prefix}{name}", str(error))
    for name in indices:
        try:
            with tree.file(f"{prefix}{name}") as file:
                verify_index(file.read_all(MOST_JSON_BYTES), f"{prefix}{name}", tensors.by_file(), found)
        except ReadError as error:
            found.not_checked(f"{prefix}{name}", str(error))


class _Names:
    """Names of tensors by the file in which they are, as many as fit into memory."""

    def __init__(self) -> None:
        self._files: dict[str, set[str]] = {}
        self._left = _MOST_NAME_CHARACTERS

    def keep(self, file: str, names: Iterable[str]) -> None:
        kept = self._files.setdefault(file, set())
        for name in names:
            self._left -= len(name) + _LEAST_NAME_BYTES
            if self._left < 0:
                return
            kept.add(name)

    def by_file(self) -> dict[str, set[str]]:
        """Return all of them. Raises TooMuchError if they were too many."""
        if self._left < 0:
            raise TooMuchError("the shards hold more tensors than can be compared with it")
        return self._files
