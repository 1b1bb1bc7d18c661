"""Nodes for the fake NVML library: what GPUs of a kind tell, different for each GPU so that a mix-up shows.

Values are of the order that such GPUs show under training; the shape is documented in support.gpu.nvml.
"""

from __future__ import annotations

import time
from typing import Any

Node = dict[str, Any]
"""A node or a part of it, as it goes into the JSON file."""

LINKS = 18
"""NVLinks of an H100 or a B200."""
NVLINK_4, NVLINK_5 = 6, 7
"""NVML_NVLINK_VERSION_4_0, _5_0."""
MIB = 1 << 20
HEALTHY_FABRIC = 0x1AA
"""Health mask in which bandwidth, routes and timeouts are denied as faults and no setting is wrong."""


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
    """The same with GPUs like the B200: NVLink 5, whose counters are other fields."""
    node = hopper_node(gpus)
    for index, gpu in enumerate(node["gpus"]):
        gpu.update(name="NVIDIA B200", architecture=10, compute_capability=[10, 0])
        gpu["nvlinks"] = [{**link, "version": NVLINK_5} for link in gpu["nvlinks"]]
        for field in ("138", "139", "140", "141", "161", "162", "163"):
            del gpu["fields"][field]
        gpu["fields"] |= {
            str(field): [(field - 200) * 1000 + index * 100 + link for link in range(LINKS)]
            for field in range(201, 223)
        }
    return node


def running(node: Node) -> Node:
    """Let the counters of a node grow with time, as they do under load; the node itself, changed.

    They grow from now on, whatever process looks and how often it starts anew.
    """
    node["driver"]["epoch"] = time.monotonic()
    for gpu in node["gpus"]:
        gpu["power"]["energy_mj"] = _growing(gpu["power"]["energy_mj"], gpu["power"]["usage_mw"])
        fields = gpu["fields"]
        fields["74"] = _growing(fields["74"], 2e7)  # ns: 2 % of the time
        for field in ("138", "139", "140", "141"):
            if field in fields:
                fields[field] = [_growing(value, 4e6) for value in fields[field]]
        for field in ("197", "198"):
            fields[field] = _growing(fields[field], 3e9)
    return node


def split_into_instances(gpu: Node, instances: int = 2) -> Node:
    """Switch MIG on for a GPU, with instances of the profile 3g.40gb; the GPU itself, changed."""
    gpu["utilization"] = None
    gpu["mig"] |= {"mode": 1, "pending": 1, "devices": [_instance(gpu, each) for each in range(instances)]}
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
        "board_part_number": "692-2G520-0200-000",
        "board_id": bus << 8,
        "architecture": 9,
        "compute_capability": [9, 0],
        "persistence_mode": 1,
        "performance_state": 0,
        "pci": {"domain": 0, "bus": bus, "device": 0, "device_id": 0x233010DE, "subsystem_id": 0x16C110DE},
        **_load(index),
        **_heat(index),
        **_links(index, bus),
        **_faults(index),
        "fields": _fields(index),
        "gpm": {"supported": 1, "metrics": _gpm(index)},
        "mig": {"mode": 0, "pending": 0, "max_devices": 7, "devices": []},
        "event_types": 0x1EB,
    }


def _load(index: int) -> Node:
    total, reserved, used = 81559 * MIB, (630 + index) * MIB, (60000 + 1000 * index) * MIB
    return {
        "utilization": {"gpu": 90 + index, "memory": 40 + index},
        "memory": {"total": total, "reserved": reserved, "used": used, "free": total - reserved - used},
        "processes": {
            "compute": [{"pid": 40000 + index, "memory": used - 512 * MIB}],
            "graphics": [],
        },
    }


def _heat(index: int) -> Node:
    return {
        "temperature": {"gpu": 55 + index, "margin": 32 - index, "thresholds": [92, 89, 95, 87]},
        "power": {
            "usage_mw": 610_250 + 1_000 * index,
            "limit_mw": 700_000,
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


def _links(index: int, bus: int) -> Node:
    return {
        "pcie": {
            "generation": 5,
            "max_generation": 5,
            "width": 16,
            "max_width": 16,
            "tx_kib": 210_000 + index,
            "rx_kib": 310_000 + index,
            "replays": 3 + index,
        },
        "nvlinks": [_nvlink(index, link) for link in range(LINKS)],
        "fabric": {
            "state": 3,
            "status": 0,
            "clique_id": 7 + index,
            "cluster_uuid": "000102030405060708090a0b0c0d0e0f",
            "health_mask": HEALTHY_FABRIC,
            "health_summary": 1,
        },
    }


def _nvlink(index: int, link: int) -> Node:
    switch = 3 + link % 4
    return {
        "active": 1,
        "version": NVLINK_4,
        "capabilities": [1, 1, 1, 1, 1, 0],
        "remote_type": 1,
        "remote": {"domain": 0, "bus": switch, "device": 0, "device_id": 0x22A310DE, "subsystem_id": 0},
        "errors": [index, 100 + link, 200 + link, 300 + link, 400 + link],
    }


def _faults(index: int) -> Node:
    return {
        "ecc": {
            "mode": 1,
            "pending": 1,
            "corrected": {"volatile": 10 + index, "aggregate": 100 + index},
            "uncorrected": {"volatile": 1000 + index, "aggregate": 2000 + index},
        },
        "remapped_rows": {"correctable": 20 + index, "uncorrectable": 30 + index, "pending": 0, "failure": 0},
    }


def _fields(index: int) -> Node:
    """Values by field; a list has one per NVLink (scopeId). Those of NVLink 5 are left out: not supported."""
    seconds = 1_000_000_000  # fields 74-79 and 269-271 count nanoseconds
    fields: Node = {str(74 + each): (each * 100 + 10 + index) * seconds for each in range(6)}
    fields |= {str(269 + each): (each * 100 + 700 + index) * seconds for each in range(3)}
    fields |= {"82": 70 + index, "91": LINKS, "94": 3 + index}
    fields |= {str(138 + each): _by_link(each + 1, index) for each in range(4)}
    fields |= {"142": 20 + index, "143": 30 + index, "144": 0, "145": 0}
    fields |= {str(161 + each): [each * 10 + index + link for link in range(LINKS)] for each in range(3)}
    fields |= {"197": 7_000_000_000 + index, "198": 8_000_000_000 + index}
    fields |= {"226": 0, "227": 0, "230": 0}
    return fields


def _by_link(kind: int, index: int) -> list[int]:
    return [kind * 1_000_000_000 + index * 1_000_000 + link * 1_000 for link in range(LINKS)]


def _gpm(index: int) -> Node:
    """GPM metrics by number: percent, MiB/s from 20 on."""
    metrics: Node = {str(each): 40.0 + each + index / 8 for each in range(1, 14)}
    metrics |= {"20": 1000.0 + index, "21": 2000.0 + index, "60": 30_000.0 + index, "61": 31_000.0 + index}
    return metrics


_PROFILE = {
    "multiprocessors": 60,
    "copy_engines": 3,
    "decoders": 3,
    "encoders": 0,
    "jpegs": 3,
    "ofas": 0,
    "gpu_slices": 3,
    "compute_slices": 3,
}
"""What an instance of 3g.40gb has."""


def _instance(gpu: Node, number: int) -> Node:
    total = 40_448 * MIB
    used = (1000 * (number + 1)) * MIB
    return {
        "uuid": f"MIG-{gpu['uuid'][4:]}".removesuffix(gpu["uuid"][-2:]) + f"{0xE0 + number:02x}",
        "name": f"{gpu['name']} MIG 3g.40gb",
        "gpu_instance": number + 1,
        "compute_instance": 0,
        "memory": {"total": total, "reserved": 0, "used": used, "free": total - used},
        "attributes": {**_PROFILE, "memory_mb": total // MIB},
        "processes": {
            "compute": [
                {
                    "pid": 50_000 + number,
                    "memory": used,
                    "gpu_instance": number + 1,
                    "compute_instance": 0,
                }
            ],
            "graphics": [],
        },
        "gpm": {"metrics": {str(each): 10.0 * (number + 1) + each for each in range(1, 14)}},
    }
