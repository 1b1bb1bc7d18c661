"""What the driver asks to be done about a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device

_ACTION = metric("rankwatch_gpu_recovery_action").name
_ACTION_FIELD = (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)  # in DCGM, 230 means XID errors
_RESET_FIELD = (pynvml.NVML_FI_DEV_RESET_STATUS, 0)
_DRAIN_FIELD = (pynvml.NVML_FI_DEV_DRAIN_AND_RESET_STATUS, 0)
_NONE = "none"
_RESET = "gpu_reset"
_DRAIN = "drain_and_reset"
_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: _NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: _RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "node_reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain_p2p",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: _DRAIN,
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover_imex_domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "bus_reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "system_reboot",
}

FIELDS = {_ACTION_FIELD: "recovery_action", _RESET_FIELD: "recovery_action", _DRAIN_FIELD: "recovery_action"}


def read(gpu: Device) -> Iterable[Sample]:
    """The action, or what the older reset status says of it."""
    told = gpu.fields.get(_ACTION_FIELD)
    if told is not None:
        action = _ACTIONS.get(int(told))
        if action is None:
            gpu.reject("recovery_action")
    else:
        action = _by_status(gpu.fields.get(_RESET_FIELD), gpu.fields.get(_DRAIN_FIELD))
    if action is not None:
        yield gpu.sample(_ACTION, 1.0, action)


def _by_status(reset: float | None, drain: float | None) -> str | None:
    """Drivers before 570 tell two flags."""
    if reset == 1:
        return _RESET
    if drain == 1:
        return _DRAIN
    return _NONE if reset == 0 and drain in (0, None) else None
