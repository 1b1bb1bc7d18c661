"""Nodes for the fake NVML library. Each GPU has its own values, so that a mix-up shows.

The values have the size that such GPUs show under training. support.gpu.nvml documents their shape.
"""

from __future__ import annotations

import time
from typing import Any

Node = dict[str, Any]
"""A node or a part of it."""

LINKS = 18
"""NVLinks of an H100 or a B200."""
C2C_LINKS = 10
MIB = 1 << 20
HEALTHY_FABRIC = 0x1AA
"""Health mask that denies all faults of bandwidth, routes, timeouts and configuration."""


def hopper_node(gpus: int = 8) -> Node:
    """A node with GPUs like the H100 SXM5 80 GB, all healthy."""
    return {
        "driver": {
            "absent": False,
            "generation": 1,
            "version": "580.95.05",
            "nvml_version": "13.580.95.05",
            "cuda_version": 12080,
        },
        "unsupported": [],
        "errors": {},
        "hang": [],
        "events": [],
        "gpus": [_hopper(index) for index in range(gpus)],
    }


def blackwell_node(gpus: int = 8) -> Node:
    """A node with GPUs like the B200: the counters of NVLink 5 are other fields."""
    node = hopper_node(gpus)
    for index, gpu in enumerate(node["gpus"]):
        gpu.update(name="NVIDIA B200", architecture=10)
        for field in ("138", "139", "161", "162", "163"):
            del gpu["fields"][field]
        gpu["fields"] |= {
            str(field): [(field - 200) * 1000 + index * 100 + link for link in range(LINKS)]
            for field in range(201, 223)
        }
    return node


def connect_to_grace(gpu: Node) -> Node:
    """Change a GPU into one with chip-to-chip links to a Grace CPU, as of a GB200; returns the GPU."""
    by_field = {171: 1, 172: 44_712, 234: 0, 231: 5, 232: 3, 233: 0}
    gpu["fields"] |= {"170": C2C_LINKS}
    gpu["fields"] |= {str(field): [value] * C2C_LINKS for field, value in by_field.items()}
    return gpu


def running(node: Node) -> Node:
    """Change the counters of a node into ones that grow from now on, in every process that reads them."""
    node["driver"]["epoch"] = time.monotonic()
    for gpu in node["gpus"]:
        gpu["power"]["energy_mj"] = _growing(gpu["power"]["energy_mj"], gpu["power"]["usage_mw"])
        fields = gpu["fields"]
        fields["74"] = _growing(fields["74"], 2e7)  # ns: 2 % of the time
        for field in ("138", "139"):
            if field in fields:
                fields[field] = [_growing(value, 4e6) for value in fields[field]]
    return node


def split_into_instances(gpu: Node) -> Node:
    """Change a GPU into one with two MIG instances of the profile 3g.40gb; returns the GPU."""
    gpu["utilization"] = None
    gpu["mig"] |= {"mode": 1, "devices": [_instance(gpu, each) for each in range(2)]}
    gpu["processes"]["compute"] = []
    return gpu


def _growing(value: int, rate: float) -> Node:
    return {"value": value, "rate": rate}


def _hopper(index: int) -> Node:
    bus = 0x1B + 0x10 * index
    return {
        "lost": False,
        "unsupported": [],
        "errors": {},
        "hang": [],
        "uuid": f"GPU-{0x5A31C0D0 + index:08x}-7b1e-4c55-9f02-{0xA1B2C3D40000 + index:012x}",
        "name": "NVIDIA H100 80GB HBM3",
        "minor_number": (index + 4) % 8 if index < 8 else index,  # as on real boards: not the index
        "serial": f"165202300{index:04d}",
        "architecture": 9,
        "firmware": {"vbios": f"96.00.74.00.{index:02d}", "inforom": "G520.0200.00.05"},
        "pci": {"bus": bus},
        **_load(index),
        **_heat(index),
        **_links(index),
        **_faults(index),
        "fields": _fields(index),
        "gpm": {"supported": 1, "metrics": _gpm(index)},
        "mig": {"mode": 0, "max_devices": 7, "devices": []},
        "event_types": 0x1EB,
    }


def _load(index: int) -> Node:
    total, reserved, used = 81559 * MIB, (630 + index) * MIB, (60000 + 1000 * index) * MIB
    return {
        "utilization": {"gpu": 90 + index, "memory": 40 + index, "encoder": 1 + index, "decoder": 10 + index},
        "performance_state": index % 2,
        "memory": {"total": total, "reserved": reserved, "used": used, "free": total - reserved - used},
        "processes": {"compute": [{"pid": 40000 + index, "memory": used - 512 * MIB}]},
    }


def _heat(index: int) -> Node:
    return {
        "temperature": {"gpu": 55 + index, "margin": 32 - index},
        "fans": [],  # the server cools it
        "power": {
            "usage_mw": 610_250 + 1_000 * index,
            "enforced_limit_mw": 700_000 - 10_000 * index,
            "energy_mj": 5_000_000_000 + 1_000_000 * index,
        },
        "clocks": {
            "graphics": 1700 + 15 * index,
            "sm": 1701 + 15 * index,
            "memory": 2600 + index,
            "video": 1400 + 15 * index,
        },
        "max_clocks": {"graphics": 1980, "sm": 1979, "memory": 2619, "video": 1545},
        "clocks_event_reasons": {"current": (0x0, 0x4)[index % 2], "supported": 0x1FF},
    }


def _links(index: int) -> Node:
    return {
        "pcie": {
            "generation": 5,
            "max_generation": 5,
            "width": 16,
            "max_width": 16,
            "tx_kib": 210_000 + index,
            "rx_kib": 310_000 + index,
        },
        "nvlinks": [{"active": 1} for _ in range(LINKS)],
        "fabric": {"state": 3, "status": 0, "health_mask": HEALTHY_FABRIC},
    }


def _faults(index: int) -> Node:
    return {
        "ecc": {
            "mode": 1,
            "pending": 1,
            "corrected": {"volatile": 10 + index, "aggregate": 100 + index},
            "uncorrected": {"volatile": 1000 + index, "aggregate": 2000 + index},
        },
        "sram": {
            "exceeded": 0,
            "volatile": {"corrected": 1 + index, "parity": 11 + index, "secded": 21 + index},
            "aggregate": {"corrected": 101 + index, "parity": 111 + index, "secded": 121 + index},
        },
        "remap_banks": {"max": 2550 + index, "high": 5, "partial": 4, "low": 3, "none": 0},
    }


def _fields(index: int) -> Node:
    """Values by field; a list has one value per NVLink. The fields of NVLink 5 are not supported."""
    seconds = 1_000_000_000  # fields 74-79 and 269-271 count nanoseconds
    fields: Node = {str(74 + each): (each * 100 + 10 + index) * seconds for each in range(6)}
    fields |= {str(269 + each): (each * 100 + 700 + index) * seconds for each in range(3)}
    fields |= {"251": 1, "252": 2, "253": 3}  # settings of power smoothing, on this driver
    fields |= {"82": 70 + index, "94": 3 + index}
    fields |= {str(138 + each): _by_link(each + 1, index) for each in range(2)}
    fields |= {"142": 20 + index, "143": 30 + index, "144": 0, "145": 0}
    fields |= {str(161 + each): [each * 10 + index + link for link in range(LINKS)] for each in range(3)}
    fields |= {"226": 0, "227": 0, "230": 0}
    return fields


def _by_link(kind: int, index: int) -> list[int]:
    return [kind * 1_000_000_000 + index * 1_000_000 + link * 1_000 for link in range(LINKS)]


def _gpm(index: int) -> Node:
    """GPM metrics by number: per cent, from 20 on MiB/s."""
    metrics: Node = {str(each): 40.0 + each + index / 8 for each in range(1, 14)}
    metrics |= {"20": 1000.0 + index, "21": 2000.0 + index}
    return metrics


def _instance(gpu: Node, number: int) -> Node:
    total = 40_448 * MIB
    used = (1000 * (number + 1)) * MIB
    return {
        "uuid": f"MIG-{gpu['uuid'][4:]}".removesuffix(gpu["uuid"][-2:]) + f"{0xE0 + number:02x}",
        "name": f"{gpu['name']} MIG 3g.40gb",
        "gpu_instance": number + 1,
        "compute_instance": 0,
        "memory": {"total": total, "reserved": 0, "used": used, "free": total - used},
        "attributes": {"gpu_slices": 3, "compute_slices": 3, "memory_mb": total // MIB},
        "gpm": {"metrics": {str(each): 10.0 * (number + 1) + each for each in range(1, 14)}},
    }
