"""Folders of torch.distributed.checkpoint: each tensor's bytes in each shard, found through `.metadata`."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain, islice
from pathlib import PurePosixPath

from rankwatch_checkpoints.distributed_metadata import (
    MOST_PIECES,
    DistributedMetadata,
    StoredItem,
    coverage_problem,
    merge,
    read_metadata,
)
from rankwatch_checkpoints.layouts import absent
from rankwatch_checkpoints.pickles import MOST_BYTES, PickleError
from rankwatch_checkpoints.reading import MissingFileError, OpenFile, ReadError, Region, TooMuchError
from rankwatch_checkpoints.result import MOST_PROBLEMS, Damage, Verification
from rankwatch_checkpoints.tensor_names import element_bytes, only_tensor
from rankwatch_checkpoints.torch_zip import verify_torch_zip
from rankwatch_checkpoints.tree import Tree
from rankwatch_checkpoints.zip_layout import looks_like_zip

METADATA = ".metadata"
_RANK_METADATA = re.compile(r"__(\d+)\.metadata")
_SHARD = re.compile(r"__(\d+)_\d+\.distcp")
_MOST_METADATA_BYTES = 4 * MOST_BYTES
"""Of the files of all ranks, which are read one after the other."""


def is_distributed(names: list[str]) -> bool:
    """Return True for the names in a folder of torch.distributed.checkpoint, finished or not."""
    return any(
        name in (METADATA, f"{METADATA}.tmp") or _SHARD.fullmatch(name) or _RANK_METADATA.fullmatch(name)
        for name in names
    )


def verify_distributed(tree: Tree, prefix: str, names: list[str], found: Verification) -> set[str]:
    """Verify a folder whose files are `names`; `prefix` leads to it. Returns the names that belong to it."""
    merged = _all_metadata(tree, names, prefix, found)
    if merged is None:
        return {name for name in names if _SHARD.fullmatch(name) or name.startswith(METADATA)}
    _check_metadata(merged, f"{prefix}{METADATA}", found)
    by_file: dict[str, list[StoredItem]] = defaultdict(list)
    for item in merged.items:
        by_file[item.file].append(item)
    for file in list(by_file):  # under several spellings a file would be read several times
        plain = str(PurePosixPath(file))
        if file and plain != file:
            by_file[plain] += by_file.pop(file)
    used = {name for name in names if name.startswith(METADATA) or _RANK_METADATA.fullmatch(name)}
    for file, items in sorted(by_file.items()):
        used.add(file)
        _verify_shard(tree, file, prefix, items, merged, found)
    for name in names:
        if _SHARD.fullmatch(name) and name not in used:
            found.not_checked(f"{prefix}{name}", "no tensor lies in it: it is left over from an earlier save")
            used.add(name)
    return used


def _all_metadata(
    tree: Tree, names: list[str], prefix: str, found: Verification
) -> DistributedMetadata | None:
    """Return the metadata of all ranks as one; None after a problem that makes the folder unreadable."""
    files = [METADATA] if METADATA in names else sorted(filter(_RANK_METADATA.fullmatch, names), key=_rank)
    if not files:
        detail = "it is not there: the save has not finished, or never will"
        found.problem(f"{prefix}{METADATA}", Damage.UNFINISHED, detail)
        return None
    if files[0] != METADATA:
        _check_ranks(files, names, prefix, found)
    ranks: list[DistributedMetadata] = []
    pieces, left = 0, _MOST_METADATA_BYTES
    for name in files:
        try:
            with tree.file(f"{prefix}{name}") as file:
                ranks.append(read_metadata(file.read_all(min(MOST_BYTES, left))))
                left -= file.size
            pieces += ranks[-1].pieces
            if pieces > MOST_PIECES:
                raise TooMuchError(f"it holds more than {MOST_PIECES} pieces of tensors, more than are read")
        except MissingFileError as error:
            found.problem(f"{prefix}{name}", Damage.MISSING, str(error))
            return None
        except TooMuchError as error:
            found.not_read(f"{prefix}{name}", str(error))
            return None
        except ReadError as error:
            found.not_checked(f"{prefix}{name}", str(error))
            return None
        except PickleError as error:
            found.problem(f"{prefix}{name}", Damage.MALFORMED, str(error))
            return None
        found.not_checked(f"{prefix}{name}", "it has no checksum: it was held against the shards")
    return merge(ranks)


def _rank(name: str) -> int:
    match = _RANK_METADATA.fullmatch(name)
    return int(match[1]) if match else -1


def _check_ranks(files: list[str], names: list[str], prefix: str, found: Verification) -> None:
    """Report each rank without its own metadata, which it writes last: its shards are unfinished."""
    ranks = {_rank(name) for name in files}
    shards = {int(match[1]) for name in names if (match := _SHARD.fullmatch(name))}
    missing = chain(absent(ranks), sorted(each for each in shards if each > max(ranks)))
    for rank in islice(missing, MOST_PROBLEMS):
        file = f"{prefix}__{rank}.metadata"
        found.problem(file, Damage.UNFINISHED, f"it is not there: rank {rank} has not finished its save")


def _check_metadata(merged: DistributedMetadata, file: str, found: Verification) -> None:
    """Hold the metadata against itself: every chunk has bytes, every byte a chunk, chunks fill the shape."""
    for name, detail in merged.contradictions:
        found.problem(file, Damage.MALFORMED, detail, name)
    found.more_problems += merged.more_contradictions
    places: dict[str, set[tuple[int, ...] | None]] = defaultdict(set)
    for item in merged.items:
        places[item.tensor].add(item.offsets)
    for name, tensor in merged.tensors.items():
        reason = coverage_problem(tensor)
        if reason:
            found.problem(file, Damage.MALFORMED, reason, name)
        for chunk in tensor.chunks:
            if 0 not in chunk.sizes and chunk.offsets not in places[name]:
                found.problem(file, Damage.MISSING, f"no shard holds its chunk at {chunk.offsets}", name)
    for name in merged.objects:
        if None not in places[name]:
            found.problem(file, Damage.MISSING, "no shard holds it", name)
    for item in merged.items:
        if item.tensor in merged.tensors and merged.chunk_of(item) is None:
            found.problem(file, Damage.MALFORMED, f"it has no chunk at {item.offsets}", item.tensor)
        elif item.tensor not in merged.tensors and item.tensor not in merged.objects:
            found.problem(
                file, Damage.MALFORMED, "bytes are stored for it, but it is not listed", item.tensor
            )


def _verify_shard(
    tree: Tree,
    file: str,
    prefix: str,
    items: list[StoredItem],
    merged: DistributedMetadata,
    found: Verification,
) -> None:
    shown = f"{prefix}{file}"
    parts = PurePosixPath(file).parts
    if not file or file.startswith("/") or ".." in parts or "\0" in file:
        for item in items:
            detail = f"its file {file!r} leads out of the folder"
            found.problem(f"{prefix}{METADATA}", Damage.MALFORMED, detail, item.tensor)
        return
    try:
        with tree.file(shown) as shard:
            _verify_items(shard, shown, sorted(items, key=lambda each: each.offset), merged, found)
            if shard.changed():
                found.problem(shown, Damage.UNFINISHED, "it was written to while it was read")
    except MissingFileError:
        for item in items:
            found.problem(shown, Damage.MISSING, "the file is not there", item.tensor)
    except TooMuchError as error:
        found.not_read(shown, str(error))
    except ReadError as error:
        found.not_checked(shown, str(error))
        found.problem(shown, Damage.MISSING, str(error))


def _verify_items(
    shard: OpenFile, shown: str, items: list[StoredItem], merged: DistributedMetadata, found: Verification
) -> None:
    end = 0
    for item in items:
        if item.offset < end:
            found.problem(shown, Damage.MALFORMED, f"its bytes at {item.offset} overlap others", item.tensor)
            continue
        if item.offset > end:
            detail = f"{item.offset - end} bytes before it belong to nothing"
            found.problem(shown, Damage.MALFORMED, detail, item.tensor)
        end = item.offset + item.length
        if end > shard.size:
            detail = f"it ends at byte {shard.size}, where bytes {item.offset} to {end} hold it"
            found.problem(shown, Damage.TRUNCATED, detail, item.tensor)
            continue
        _verify_item(shard, shown, item, merged, found)
    if shard.size > end:
        found.problem(
            shown, Damage.EXTRA, f"{shard.size - end} bytes behind its last tensor belong to nothing"
        )


def _verify_item(
    shard: OpenFile, shown: str, item: StoredItem, merged: DistributedMetadata, found: Verification
) -> None:
    if item.transforms:
        reason = f"{item.tensor} went through {', '.join(item.transforms)}: only its size was verified"
        found.not_checked(shown, reason)
        return
    region = Region(shard, item.offset, item.length)
    tensor = merged.tensors.get(item.tensor)
    start = region.read(0, min(4, item.length))
    end = region.read(max(0, item.length - 22), min(4, item.length))
    if not looks_like_zip(start) and end != b"PK\x05\x06":
        if tensor is not None:
            found.problem(shown, Damage.FLIPPED, "its bytes are no file of torch.save", item.tensor)
        else:
            found.not_checked(
                shown, f"{item.tensor} is stored without a checksum: only its size was verified"
            )
        return
    content = verify_torch_zip(region, shown, found, item.tensor)
    found.tensors += 1
    if tensor is None or not content.whole:
        return
    chunk = merged.chunk_of(item)
    written = only_tensor(content.content)
    if chunk is None or written is None:
        return
    if written.shape != chunk.sizes or written.element_bytes not in (None, element_bytes(tensor.dtype)):
        said = f"its chunk at {chunk.offsets} is {chunk.sizes} of {tensor.dtype}"
        metadata = f"{shown.rpartition('/')[0]}/{METADATA}".lstrip("/")
        found.problem(metadata, Damage.MALFORMED, f"{said}, but {shown} holds {written.shape}", item.tensor)
