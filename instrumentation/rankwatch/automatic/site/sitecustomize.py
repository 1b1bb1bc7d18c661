"""Starts zero-code recording in the ranks of a job. `rankwatch run` puts this folder in front of PYTHONPATH.

Python imports this file when it starts, in every process below `rankwatch run`. So it must cost nothing, and
run on any Python 3: it imports os and sys, runs the sitecustomize that it hides, and waits for a framework to
be imported. Only then, and only in a process that may be a rank, rankwatch itself is imported.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))
_OLDEST_PYTHON = (3, 11)
_OFF = ("", "0", "false", "no")
_FRAMEWORKS = (
    "torch", "torchdata", "torchtitan", "transformers", "accelerate", "lightning", "lightning_fabric",
    "pytorch_lightning", "safetensors", "deepspeed", "ray.train", "jax", "keras",
)  # fmt: skip
"""The first import of one of these wakes rankwatch: of every package that it watches, because a module that
is half imported when rankwatch begins to watch is missed."""
_RANKS = (
    "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK",
)  # fmt: skip
_LOCAL_RANKS = (
    "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID", "HOROVOD_LOCAL_RANK",
)  # fmt: skip
_PLACE = (*_RANKS, "LOCAL_RANK", "NODE_RANK")
_SINGLE = "RANKWATCH_SINGLE_PROCESS"
_RANK_PROCESS = "RANKWATCH_RANK_PROCESS"
_NO_RANK_MODULES = (
    "pip", "ensurepip", "venv", "virtualenv", "build", "torch.distributed.run", "torch.distributed.launch",
    "torch.distributed.launcher", "accelerate.commands", "deepspeed.launcher", "ray", "multiprocessing",
    "torch._inductor", "rankwatch_cli", "rankwatch_agent", "rankwatch_diagnosis",
)  # fmt: skip
_NO_RANK_SCRIPTS = (
    "pip", "pip3", "virtualenv", "torchrun", "accelerate", "accelerate-launch", "deepspeed", "ray",
    "rankwatch",
)  # fmt: skip


def _program(words: "list[str]") -> "tuple[str, str]":
    """Return what Python was asked to run: ("c", code), ("m", module) or ("", script)."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-" or not word.startswith("-"):
            return "", word
        letters = "" if word.startswith("--") else word[1:]
        for position, letter in enumerate(letters):
            if letter in "cm":
                return letter, letters[position + 1 :] or next(rest, "")
            if letter in "WX":  # the rest of the word, or the next word, is its value
                if position == len(letters) - 1:
                    next(rest, "")
                break
    return "", ""


def _role() -> str:
    """ "rank" for a process that may be one, "child" for one that its parent may make one, else ""."""
    environ = os.environ
    parent = _parent()
    if environ.get("RANKWATCH_DISABLE", "").lower() not in _OFF or parent == "rank":
        return ""
    kind, text = _program(getattr(sys, "orig_argv", [""]))
    placed = any(environ.get(name) for name in _RANKS)
    if kind == "c" and "multiprocessing" in text:
        # A child of a rank of torchrun loads its batches. Other scripts start their ranks in this way.
        starts = "spawn_main" in text or "forkserver" in text
        return "child" if starts and not environ.get("RANK") else ""
    if kind == "m" and any(text == each or text.startswith(each + ".") for each in _NO_RANK_MODULES):
        return ""
    if kind == "" and (os.path.basename(text) in _NO_RANK_SCRIPTS or "/_inductor/" in text):
        return ""
    if not placed and environ.get(_SINGLE, "").lower() in _OFF:
        return ""
    return "child" if parent else "rank"


def _parent() -> str:
    """ "rank" below a training rank, "maybe" below a process that has not trained yet, "" where this process
    has a place of its own in the job."""
    pid, _, place = os.environ.get(_RANK_PROCESS, "").partition(":")
    if not pid or pid.rstrip("?") == str(os.getpid()) or place != _place():
        return ""
    return "maybe" if pid.endswith("?") else "rank"


def _mark() -> None:
    """Tell what this process starts that it may be a rank: one that a launcher has given a place. What it
    starts then counts as a rank only if it joins a process group."""
    if any(os.environ.get(name) for name in _RANKS):
        os.environ[_RANK_PROCESS] = "%d?:%s" % (os.getpid(), _place())


def _place() -> str:
    return ",".join(os.environ.get(name, "") for name in _PLACE)


class _Waker:
    """A finder of modules that finds none: it only sees the first import of a framework."""

    def __init__(self, role: str) -> None:
        self._role = role

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _FRAMEWORKS and self in sys.meta_path:
            sys.meta_path.remove(self)
            _wake(self._role)


def _wake(role: str) -> None:
    try:
        if sys.version_info < _OLDEST_PYTHON:
            raise ImportError("it needs Python %d.%d or newer" % _OLDEST_PYTHON)
        if role == "rank":
            _mark()
        _import_rankwatch()
        from rankwatch.automatic import installing

        installing.install() if role == "rank" else installing.install_in_child()
    except Exception as error:  # noqa: BLE001 - the training goes on without rankwatch
        local_ranks = [os.environ[name] for name in _LOCAL_RANKS if name in os.environ]
        if local_ranks[:1] in ([], ["0"]) and sys.stderr is not None:
            python = "%s (Python %d.%d)" % (sys.executable, sys.version_info[0], sys.version_info[1])
            sys.stderr.write("rankwatch records nothing in %s: %s\n" % (python, error))


def _import_rankwatch() -> None:
    """Import the package that the interpreter has, else the one that this folder is part of.

    Only this package: the folder around it may hold the libraries of another interpreter.
    """
    import importlib.machinery
    import importlib.util

    if "rankwatch" in sys.modules:
        return
    found = importlib.util.find_spec("rankwatch")
    if found is not None and found.origin is not None:  # not just a folder of that name
        return
    spec = importlib.machinery.PathFinder.find_spec("rankwatch", [os.path.dirname(_PACKAGE)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rankwatch"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["rankwatch"]
        raise


def _run_hidden() -> None:
    """Import the sitecustomize that Python would have found without this folder. Its errors are its own."""
    sys.path[:] = [each for each in sys.path if not each or os.path.abspath(each) != _HERE]
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")  # it is another file now
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


def _begin() -> None:
    role = _role()
    if role and any(name in sys.modules for name in _FRAMEWORKS):
        _wake(role)  # a .pth file has imported it
    elif role:
        sys.meta_path.insert(0, _Waker(role))


if __name__ == "sitecustomize":
    try:
        _begin()  # first: what is hidden may import a framework
    finally:
        _run_hidden()
