"""Files of `torch.save`: zip files whose entries have a CRC-32 each, which `torch.load` does not check.

`.pt`, `.pth`, `.ckpt`, `.bin`, `optimizer.pt`, and each tensor's part of a `.distcp` file.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any, NamedTuple

from rankwatch_checkpoints.pickles import PickleError, read_pickle
from rankwatch_checkpoints.reading import Region, ShortFileError, TooMuchError
from rankwatch_checkpoints.result import Damage, Verification
from rankwatch_checkpoints.tensor_names import Storage, storages
from rankwatch_checkpoints.zip_layout import (
    ENCRYPTED,
    Entry,
    Layout,
    LayoutError,
    NoEndError,
    check_entry,
    read_layout,
)

_LOCAL_HEADER_BYTES = 30
_LARGEST_RATIO = 1032
"""Of deflate: an entry that claims to grow more lies."""
_PICKLE_READ_BYTES = 64 << 20
"""Bytes of a pickle that are read to name tensors."""


class TorchFile(NamedTuple):
    """What a torch file holds, as its own pickle says."""

    storages: dict[str, Storage]
    content: Any
    """The value of its pickle, as `pickles` gives it; None if it could not be read."""
    whole: bool
    """False if a problem was found."""


class _Check:
    """One zip file, whole or a region of a file. `owner` is the tensor that the region belongs to, if any."""

    def __init__(self, region: Region, file: str, found: Verification, owner: str) -> None:
        self.region = region
        self.file = file
        self.found = found
        self.owner = owner
        self.storages: dict[str, Storage] = {}
        self.has_names = False
        self.problems = 0

    def problem(self, damage: Damage, detail: str, tensor: str = "") -> None:
        self.problems += 1
        self.found.problem(self.file, damage, detail, self.owner or tensor)

    def named(self, entry: str) -> str:
        """Return the tensor whose bytes an entry holds."""
        folder, _, key = entry.rpartition("/data/")
        storage = self.storages.get(key) if folder else None
        return storage.name if storage else ""


def verify_torch_zip(region: Region, file: str, found: Verification, owner: str = "") -> TorchFile:
    """Verify the zip file in a region, and add what is wrong to `found`. Raises TooMuchError."""
    check = _Check(region, file, found, owner)
    try:
        layout = read_layout(region, lambda name, detail: check.problem(Damage.FLIPPED, detail))
    except NoEndError:
        _name_the_cut(check)
        return TorchFile(check.storages, None, False)
    except LayoutError as error:
        check.problem(Damage.FLIPPED, str(error))
        return TorchFile(check.storages, None, False)
    if not _is_possible(check, layout):
        return TorchFile({}, None, False)
    content = _read_content(check, layout)
    check.storages = {each.key: each for each in storages(content)}
    _verify_entries(check, layout)
    _compare_with_pickle(check, layout)
    if not owner:
        found.tensors += len(check.storages)
    return TorchFile(check.storages, content, not check.problems)


def _is_possible(check: _Check, layout: Layout) -> bool:
    """Return False after a problem that makes it unsafe or useless to read the entries."""
    ordered = sorted(layout.entries, key=lambda each: each.header)
    names = [each.raw_name for each in ordered]
    if not names:
        check.problem(Damage.MALFORMED, "it is a zip file without entries")
    for name in {name for name, after in pairwise(sorted(names)) if name == after}:
        check.problem(Damage.MALFORMED, f"it has two entries {name.decode('utf-8', 'replace')}")
    for entry, after in pairwise([*ordered, None]):
        until = after.header if after else layout.directory
        if entry is not None and entry.header + _LOCAL_HEADER_BYTES + entry.compressed > until:
            check.problem(Damage.MALFORMED, f"its entry {entry.name} overlaps what follows it")
        if entry is not None and entry.method == 8 and entry.size > _LARGEST_RATIO * entry.compressed + 64:
            check.problem(Damage.MALFORMED, f"its entry {entry.name} claims to grow beyond what is possible")
    if layout.by_torch:  # it sets neither: these are flipped bits
        for entry in ordered:
            if entry.flags & ENCRYPTED or entry.method not in (0, 8):
                check.problem(Damage.FLIPPED, f"the directory's part of its entry {entry.name} is damaged")
        return not check.problems
    if any(each.flags & ENCRYPTED for each in ordered):
        check.found.not_checked(check.file, "it is encrypted")
        return False
    if any(each.method not in (0, 8) for each in ordered):
        check.found.not_checked(check.file, "it is compressed in a way that only newer zip programs know")
        return False
    return not check.problems


def _read_content(check: _Check, layout: Layout) -> Any:
    pickle = next((each for each in layout.entries if each.name.endswith("data.pkl")), None)
    if pickle is None or pickle.method != 0 or pickle.size > _PICKLE_READ_BYTES:
        return None
    try:
        header = check.region.read(pickle.header, _LOCAL_HEADER_BYTES)
        begin = pickle.header + 30 + int.from_bytes(header[26:28], "little")
        begin += int.from_bytes(header[28:30], "little")
        return read_pickle(check.region.read(begin, pickle.size)).value
    except TooMuchError as error:
        check.found.not_checked(check.file, f"{error}: its tensors are not named")
        return None
    except (PickleError, ShortFileError):
        return None  # if it is damaged, its CRC says so


def _verify_entries(check: _Check, layout: Layout) -> None:
    def report(name: str, detail: str) -> None:
        check.problem(Damage.FLIPPED, f"entry {name}: {detail}", check.named(name))

    ordered = sorted(layout.entries, key=lambda each: each.header)
    without_sums = bool(ordered) and not any(each.crc for each in ordered if each.size)
    if without_sums:
        reason = "it was written without checksums (set_crc32_options(False)): only sizes were verified"
        check.found.not_checked(check.file, reason)
    for entry, after in pairwise([*ordered, None]):
        assert entry is not None
        until = after.header if after else layout.directory
        begin = check_entry(check.region, entry, until, layout.by_torch, report)
        if begin is not None and not without_sums:
            _verify_content(check, entry, begin)
    if layout.by_torch and ordered and ordered[0].header != 0:
        check.problem(Damage.EXTRA, f"{ordered[0].header} bytes lie before its first entry")
    check.found.verified_bytes += 0 if without_sums else check.region.size


def _verify_content(check: _Check, entry: Entry, begin: int) -> None:
    if entry.method == 8:
        crc = _crc_of_compressed(check.region, begin, entry)
    else:
        crc = check.region.crc32(begin, entry.compressed)
    if crc == entry.crc:
        return
    hole = check.region.file.first_hole(check.region.start + begin)
    if hole is not None and hole < check.region.start + begin + entry.compressed:
        detail = f"entry {entry.name} reads as zeros from byte {hole} of the file, which was never written"
        check.problem(Damage.MISSING, detail, check.named(entry.name))
        return
    detail = f"entry {entry.name} has the CRC-32 {crc or 0:08x}, expected {entry.crc:08x}"
    check.problem(Damage.FLIPPED, detail, check.named(entry.name))


def _crc_of_compressed(region: Region, begin: int, entry: Entry) -> int | None:
    """Return the CRC-32 of the content, never whole in memory; None if it does not unpack to its size."""
    unpacker = zlib.decompressobj(-15)
    crc = size = 0
    try:
        for block in region.blocks(begin, entry.compressed):
            pending = bytes(block)
            while pending:
                content = unpacker.decompress(pending, 1 << 20)
                crc, size = zlib.crc32(content, crc), size + len(content)
                if size > entry.size:
                    return None
                pending = unpacker.unconsumed_tail
    except zlib.error:
        return None
    return crc if size == entry.size else None


def _compare_with_pickle(check: _Check, layout: Layout) -> None:
    """Hold the entries against the storages that the pickle refers to."""
    sizes = {each.name.rpartition("/data/")[2]: each.size for each in layout.entries if "/data/" in each.name}
    for key, storage in check.storages.items():
        size = sizes.get(key)
        if size is None:
            check.problem(Damage.MISSING, f"its entry data/{key} is not there", storage.name)
        elif storage.bytes is not None and size != storage.bytes:
            detail = f"its entry data/{key} has {size} bytes, expected {storage.bytes}"
            check.problem(Damage.SIZE, detail, storage.name)


def _name_the_cut(check: _Check) -> None:
    """Walk the entries of a zip file without its end, to name the tensor where it breaks off."""
    region = check.region
    if not region.size:
        check.problem(Damage.TRUNCATED, "it is empty")
        return
    if not b"PK\x03\x04".startswith(region.read(0, min(4, region.size))):
        check.problem(Damage.FLIPPED, "it neither begins nor ends as a file of torch.save")
        return
    tail = region.read(max(0, region.size - 98), min(98, region.size))
    if b"PK\x06\x06" in tail or b"PK\x06\x07" in tail:
        damage = Damage.FLIPPED if tail[:4] == b"PK\x06\x06" else Damage.TRUNCATED
        check.problem(damage, "its end record is damaged or cut off")
        return
    entry, tensor = _last_entry(check)
    where = f" in the entry {entry}" if entry else " before the directory of its entries"
    check.problem(Damage.TRUNCATED, f"it breaks off at byte {region.size},{where}", tensor)


def _last_entry(check: _Check) -> tuple[str, str]:
    """Return the entry and the tensor in which the file ends; empty if it ends behind the last entry."""
    at, region = 0, check.region
    passed: set[str] = set()
    while True:
        header = region.read(at, min(_LOCAL_HEADER_BYTES, region.size - at))
        if len(header) >= 4 and header[:4] != b"PK\x03\x04":
            return "", ""
        lengths = [int.from_bytes(header[place : place + 2], "little") for place in (26, 28)]
        begin = at + _LOCAL_HEADER_BYTES + sum(lengths)
        raw = region.read(at, min(begin, region.size) - at)[30 : 30 + lengths[0]]
        name = raw.decode("utf-8", "replace")
        if begin > region.size:
            following = (each.name for key, each in check.storages.items() if key not in passed)
            tensor = check.named(name) or next(following, "")
            return name or "that follows", tensor
        length = _content_length(check, name, begin)
        if length is None:
            return name, check.named(name)
        passed.add(name.rpartition("/data/")[2])
        at = begin + length
        at += 16 if region.size < at + 4 or region.read(at, 4) == b"PK\x07\x08" else 0
        if at >= region.size:
            return name, check.named(name)


def _content_length(check: _Check, name: str, begin: int) -> int | None:
    """Return bytes of an entry without the directory: by the pickle, or up to the descriptor behind it."""
    region = check.region
    key = name.rpartition("/data/")[2]
    if key in check.storages:
        return check.storages[key].bytes
    if name.endswith("data.pkl") and not check.has_names:
        check.has_names = True
        try:
            pickled = read_pickle(region.read(begin, min(_PICKLE_READ_BYTES, region.size - begin)))
        except (PickleError, TooMuchError):
            return None
        check.storages = {each.key: each for each in storages(pickled.value)}
        return pickled.end
    return _find_descriptor(region, begin)


def _find_descriptor(region: Region, begin: int) -> int | None:
    """Return the bytes up to the descriptor of an entry, read by no more than twice as many."""
    at, count, until = begin, 256, min(begin + _PICKLE_READ_BYTES, region.size)
    while at < until:
        place = region.read(at, min(count, until - at)).find(b"PK\x07\x08")
        if place >= 0:
            return at + place - begin
        at, count = at + count - 3, min(2 * count, 1 << 20)
    return None
