"""torch.distributed.checkpoint, by the messages that it gives to its own logger.

Each function reports its start, its end and, some of them, an exception. Start and end have the same `uuid`;
functions that call each other nest within a thread. An asynchronous save is one operation: from the call of
`async_save`, which blocks training, until the future of the upload is done, in a thread or a process beside.
If training waits for that future, or for the one of the copy, that blocks it, too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from rankwatch.automatic.checkpoints import LOAD, SAVE, ObservedOperation, Part, checkpoints
from rankwatch.automatic.patching import guarded, watch
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import Capability, CheckpointStage

_LOGGER = "c10d-NullHandler-dcp_logger"
_OPERATIONS = {"save": SAVE, "async_save": SAVE, "load": LOAD}
_STAGES = {
    "_stateful_to_state_dict": CheckpointStage.STATE_DICT,
    "stage_state_dict": CheckpointStage.STAGE,
    "maybe_synchronize_staging": CheckpointStage.SYNCHRONIZE_STAGING,
    "create_checkpoint_daemon_process": CheckpointStage.START_PROCESS,
    "local_step": CheckpointStage.LOCAL_PLAN,
    "global_step": CheckpointStage.GLOBAL_PLAN,
    "write_data": CheckpointStage.WRITE,
    "read_data": CheckpointStage.READ,
    "finish_checkpoint": CheckpointStage.COMMIT,
}
_MOST_UPLOADS = 16
"""Uploads that are followed at a time."""


class _Call:
    """A function that has begun and not ended."""

    def __init__(self, uuid: str, name: str) -> None:
        self.uuid = uuid
        self.name = name
        self.began = checkpoints.clock()
        self.part: Part | None = None
        self.operation: ObservedOperation | None = None
        """The upload that a background thread works for."""
        self.size = 0


class Upload:
    """An asynchronous save that is not durable yet."""

    def __init__(self, operation: ObservedOperation, identifier: str, rank: int) -> None:
        self.operation = operation
        self.identifier = identifier
        self.rank = rank
        self.future: Any = None


def _cause(error: BaseException) -> BaseException:
    """Return the first rank's own exception, of one that is made of those of all ranks."""
    failures = getattr(error, "failures", None)
    of_rank = next(iter(failures.values()), None) if isinstance(failures, dict) else None
    cause = of_rank[0] if isinstance(of_rank, tuple) else None  # beside it stands its traceback
    return cause if isinstance(cause, BaseException) else error


class DistributedCheckpoints(logging.Handler):
    """Turns the messages into operations and stages. It takes no lock, and none of its errors gets out."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._thread = threading.local()
        self._uploads: list[Upload] = []
        self.handle = guarded("follow torch.distributed.checkpoint", self._handle)  # type: ignore[method-assign]

    def createLock(self) -> None:  # noqa: N802 - the name that logging gives it
        """Do without a lock: the training thread must not wait for a background thread."""
        self.lock = None

    def _handle(self, record: logging.LogRecord) -> bool:
        message = record.msg
        if isinstance(message, dict) and "uuid" in message:
            if message.get("event") == "start":
                self._began(message)
            else:
                self._ended(message, failed=message.get("event") == "exception")
        return True

    @property
    def _calls(self) -> list[_Call]:
        """Those of this thread, the outermost first."""
        calls: list[_Call] | None = getattr(self._thread, "calls", None)
        if calls is None:
            calls = self._thread.calls = []
        return calls

    def _began(self, message: Mapping[str, Any]) -> None:
        name = str(message.get("func_name", ""))
        call = _Call(message["uuid"], name)
        operation = _OPERATIONS.get(name)
        if operation is not None and not self._calls:
            upload = self._upload_of_thread(message) if name == "save" else None
            if upload is not None:
                call.operation = upload.operation
            else:
                call.part = checkpoints.begin(operation, lasting=name == "async_save")
                call.part.lies_at(message.get("checkpoint_id"))
                if name == "async_save":
                    self._add_upload(call.part.operation, message)
        self._calls.append(call)

    def _ended(self, message: Mapping[str, Any], *, failed: bool) -> None:
        calls = self._calls
        if all(each.uuid != message["uuid"] for each in calls):
            return
        operation, error = self._operation(calls[-1]), sys.exc_info()[1]
        if failed and operation is not None and error is not None:  # it reports inside of `except`
            operation.raised(_cause(error))
        while True:  # some functions do not report their exceptions
            call = calls.pop()
            ended = call.uuid == message["uuid"]
            self._close(call, failed=failed or not ended)
            if ended:
                return

    def _close(self, call: _Call, *, failed: bool) -> None:
        operation = self._operation(call)
        stage = _STAGES.get(call.name)
        if operation is not None and stage is not None:
            operation.stage(stage, call.began, checkpoints.clock(), size=call.size, failed=failed)
        if call.part is not None:
            checkpoints.end(call.part, failed=failed)
            if call.name == "async_save" and failed:
                self._finish(call.part.operation, failed=True)
        elif call.operation is not None:
            self._finish(call.operation, failed=failed)

    def _operation(self, call: _Call) -> ObservedOperation | None:
        """Return the operation that the call, or the outermost one around it, works for."""
        outermost = self._calls[0] if self._calls else call
        if outermost.part is not None:
            return outermost.part.operation
        if outermost.operation is None and threading.current_thread() is not threading.main_thread():
            upload = self._upload_of_thread({})
            return None if upload is None else upload.operation
        return outermost.operation

    def working(self) -> bool:
        """Return True while a function of it runs in this thread."""
        return bool(self._calls)

    def transfers(self, folder: object) -> None:
        """Note the folder in which a writer or a reader of this rank is about to work."""
        outermost = next(iter(self._calls), None)
        if outermost is not None and (place := outermost.part or self._operation(outermost)):
            place.lies_at(folder)

    def wrote(self, size: int) -> None:
        """Count bytes that the writer of this rank has written; the stage that is open took part in it."""
        for call in reversed(self._calls):
            if call.name == "write_data":
                call.size += size
                return

    # -- uploads ----------------------------------------------------------------------------------

    def _add_upload(self, operation: ObservedOperation, message: Mapping[str, Any]) -> None:
        upload = Upload(operation, str(message.get("checkpoint_id")), int(message.get("global_rank") or 0))
        self._uploads = [*self._uploads, upload][-_MOST_UPLOADS:]

    def _upload_of_thread(self, message: Mapping[str, Any]) -> Upload | None:
        """Return the one that this background thread writes: by the checkpoint's name, else the oldest."""
        if threading.current_thread() is threading.main_thread():
            return None
        uploads = self._uploads
        named = [each for each in uploads if each.identifier == str(message.get("checkpoint_id"))]
        return next(iter(named or uploads), None)

    def upload_began(self, future: Any) -> None:
        """Follow the upload whose future `async_save` of this thread has got."""
        upload = self._upload_of_call()
        if upload is not None:
            upload.future = future
            done = guarded("follow an asynchronous checkpoint", lambda ended: self._uploaded(upload, ended))
            future.add_done_callback(done)
            _watch_waits(future, upload.operation, CheckpointStage.WAIT_PREVIOUS)

    def staging_began(self, future: Any) -> None:
        """Watch the future of the copy, which `async_save` of this thread is about to return."""
        upload = self._upload_of_call()
        if upload is not None:
            _watch_waits(future, upload.operation, CheckpointStage.SYNCHRONIZE_STAGING)

    def _upload_of_call(self) -> Upload | None:
        call = next((each for each in self._calls if each.name == "async_save"), None)
        part = None if call is None else call.part
        return next((each for each in self._uploads if part and each.operation is part.operation), None)

    def _uploaded(self, upload: Upload, future: Any) -> None:
        error = None if future.cancelled() else future.exception()
        failed = future.cancelled() or error is not None
        if not failed and not upload.operation.size:
            upload.operation.size = sum(_sizes(upload.identifier, upload.rank))
        if error is not None:
            upload.operation.raised(_cause(error))
        self._finish(upload.operation, failed=failed)

    def _finish(self, operation: ObservedOperation, *, failed: bool) -> None:
        self._uploads = [each for each in self._uploads if each.operation is not operation]
        checkpoints.finish(operation, failed=failed)


def _watch_waits(future: Any, operation: ObservedOperation, stage: CheckpointStage) -> None:
    """Watch the two methods of this future that wait for it, until it is done."""
    finishes = stage is CheckpointStage.WAIT_PREVIOUS

    def began() -> Any:
        return None if future.done() else checkpoints.wait_begins(operation, stage)

    def ended(phase: Any) -> None:
        checkpoints.wait_ends(operation, phase, finishes=finishes and future.done())

    what = "follow waits for an asynchronous checkpoint"
    begins, ends = guarded(what, began), guarded(what, ended)
    names = ("result", "exception")
    for name in names:
        setattr(future, name, partial(_wait, getattr(future, name), begins, ends))
    future.add_done_callback(lambda done: [done.__dict__.pop(each, None) for each in names])


def _wait(
    call: Callable[..., Any],
    began: Callable[[], Any],
    ended: Callable[[Any], None],
    *args: Any,
    **kwargs: Any,
) -> Any:
    phase = began()
    try:
        return call(*args, **kwargs)
    finally:
        ended(phase)


def _sizes(folder: str, rank: int) -> Iterator[int]:
    """Yield sizes of the files that a rank wrote into a folder. Lists it: only for background threads."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(f"__{rank}_"):
                    yield entry.stat().st_size
    except OSError:
        return


distributed_checkpoints = DistributedCheckpoints()
"""The one of this process."""


def patch_logger(module: ModuleType) -> None:
    """Listen to the logger."""
    logger = getattr(module, "_dcp_logger", None) or logging.getLogger(_LOGGER)
    if distributed_checkpoints not in logger.handlers:
        logger.addHandler(distributed_checkpoints)
    visibility.sees(Capability.CHECKPOINTS)


def patch_files(module: ModuleType) -> None:
    """Watch what a rank writes and reads."""

    def wrote(_: object, result: Any, error: BaseException | None) -> None:
        if error is None and result.done():
            distributed_checkpoints.wrote(sum(each.size_in_bytes for each in result.value()))

    def transfers(storage: Any, *_: Any, **__: Any) -> None:
        distributed_checkpoints.transfers(storage.path)

    watch(module._FileSystemWriter, "write_data", began=transfers, ended=wrote)
    watch(module.FileSystemReader, "read_data", began=transfers)


def patch_reply(module: ModuleType) -> None:
    """Watch the reply of an asynchronous save that holds the future of the copy."""

    def made(_: object, staging_completion: Any, upload_completion: Any) -> None:
        distributed_checkpoints.staging_began(staging_completion)

    reply = getattr(module, "AsyncSaveResponse", None)  # older versions of torch have none
    if reply is not None:
        watch(reply, "__init__", began=made)


def patch_executor(module: ModuleType) -> None:
    """Watch one of the two executors of asynchronous saves: it holds the future of the upload."""

    def executed(_: object, result: Any, error: BaseException | None) -> None:
        if error is None:
            distributed_checkpoints.upload_began(result)

    def executes(*_: Any, storage_writer: Any = None, **__: Any) -> None:
        distributed_checkpoints.transfers(getattr(storage_writer, "path", None))

    kind = "Process" if module.__name__.endswith("_async_process_executor") else "Thread"
    executor = getattr(module, f"_{kind}BasedAsyncCheckpointExecutor")
    watch(executor, "execute_save", began=executes, ended=executed)
