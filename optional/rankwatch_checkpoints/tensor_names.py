"""Which tensor's bytes a storage of a torch file holds, by the pickle beside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

from rankwatch_checkpoints.pickles import Call, Pairs, Persistent, name_of

MOST_DIMENSIONS = 64
LARGEST_SIZE = (1 << 63) - 1
"""Of a tensor in one dimension, and of a file: torch and Linux count them in 64 bits with a sign."""
_MOST_VALUES = 4_000_000
_DEEPEST = 100
_LONGEST_KEY = 200
_MOST_NAMES = 3
"""Names that are shown for one storage, which views and tied weights may share."""

_STORAGE_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1,
    "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "Untyped": 1,
}  # fmt: skip


_Path = tuple["_Path", Any] | None
"""The keys that lead to a value, the last one first, as a chain: paths share what they have in common."""


class Storage(NamedTuple):
    """A storage that the pickle refers to."""

    key: str
    """Its entry is `data/<key>`."""
    bytes: int | None
    """The size it must have; None if its type is not known."""
    tensors: tuple[_Path, ...]

    def names(self) -> Iterator[str]:
        """Return the names of its tensors."""
        return map(_shown, self.tensors)

    @property
    def name(self) -> str:
        """All names in one text."""
        more = ", ..." if len(self.tensors) > _MOST_NAMES else ""
        return ", ".join(islice(self.names(), _MOST_NAMES)) + more


def storages(value: Any) -> list[Storage]:
    """Return the storages of an unpickled value in the order of their first use."""
    found: dict[str, Storage] = {}
    for path, persistent in _persistent(value):
        key, size = _storage(persistent.value)
        if key is None:
            continue
        known = found.get(key)
        paths = known.tensors if known else ()
        if len(paths) <= _MOST_NAMES and not any(path is each for each in paths):
            paths = (*paths, path)
        found[key] = Storage(key, size, paths)
    return list(found.values())


class Tensor(NamedTuple):
    """Type and shape of a tensor, as its own pickle has them."""

    element_bytes: int | None
    shape: tuple[int, ...]


def only_tensor(value: Any) -> Tensor | None:
    """Return the tensor that the value is, if torch's plain way of saving one was used."""
    for _ in range(_DEEPEST):
        if not isinstance(value, Call) or not isinstance(value.arguments, tuple) or not value.arguments:
            return None
        if name_of(value) != "torch._utils._rebuild_tensor_v2":
            value = value.arguments[0]  # a parameter, or a subclass around it
            continue
        storage, shape = value.arguments[0], value.arguments[2] if len(value.arguments) > 2 else None
        if not isinstance(storage, Persistent) or not is_shape(shape):
            return None
        return Tensor(_width(storage.value), shape)
    return None


def is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    """Return True for a tuple of sizes that a tensor can have."""
    return (
        isinstance(value, tuple)
        and len(value) <= MOST_DIMENSIONS
        and all(type(each) is int and 0 <= each <= LARGEST_SIZE for each in value)
    )


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of one element of `torch.float32` or of `float32`; None for an unknown type."""
    return _DTYPE_BYTES.get(dtype.removeprefix("torch."))


_DTYPE_BYTES = {
    "float64": 8, "double": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "int64": 8, "long": 8, "int32": 4, "int": 4, "int16": 2, "short": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip


def _storage(value: Any) -> tuple[str | None, int | None]:
    """Return key and size in bytes of torch's persistent id `("storage", type, key, location, elements)`."""
    if not isinstance(value, tuple) or len(value) < 5 or value[0] != "storage":
        return None, None
    key, elements = value[2], value[4]
    if not isinstance(key, str) or not is_shape((elements,)):
        return None, None
    width = _width(value)
    return key, None if width is None else width * elements


def _width(value: Any) -> int | None:
    """Return the bytes of an element by torch's persistent id."""
    kind = name_of(value[1]) if isinstance(value, tuple) and len(value) > 1 else ""
    return _STORAGE_BYTES.get(kind.rpartition(".")[2].removesuffix("Storage"))


def _persistent(value: Any) -> Iterator[tuple[_Path, Persistent]]:
    """Yield every persistent id in the value with the path of keys that leads to it; each object is met once
    per name as long as the value is small, so that tied weights show both names."""
    pending: list[Iterator[tuple[_Path, Any]]] = [iter([(None, value)])]
    seen: set[int] = set()
    for _ in range(_MOST_VALUES):
        step = next(pending[-1], None)
        if step is None:
            pending.pop()
            if not pending:
                return
            continue
        path, current = step
        if isinstance(current, Persistent):
            yield path, current
        if len(pending) > _DEEPEST or not isinstance(current, (list, tuple, Call)):
            continue
        if isinstance(current, (list, Call)):  # tuples may be shared between tensors
            if id(current) in seen and not name_of(current).startswith("torch._utils."):
                continue
            seen.add(id(current))
        pending.append(_parts(path, current))


def _parts(path: _Path, current: Any) -> Iterator[tuple[_Path, Any]]:
    if isinstance(current, Pairs):
        yield from (((path, key), part) for key, part in current)
    elif isinstance(current, Call):
        yield path, current.arguments
        yield path, current.state
        if current.items:
            yield from _parts(path, current.items)
    elif isinstance(current, list):
        yield from (((path, index), part) for index, part in enumerate(current))
    else:
        yield from ((path, part) for part in current)


def _shown(path: _Path) -> str:
    keys = []
    while path is not None:
        path, key = path
        keys.append(str(key)[:_LONGEST_KEY] if isinstance(key, (str, int)) else "?")
    return ".".join(reversed(keys))
