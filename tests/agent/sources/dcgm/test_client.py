"""The parser for the text of dcgm-exporter, whose label values are not escaped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch_agent.sources import dcgm
from rankwatch_agent.sources.dcgm import DcgmSample, parse_answer

HEAD = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:3B:00.0"'
FIELD = "DCGM_FI_DEV_GPU_TEMP"
SAMPLE = DcgmSample(FIELD, "GPU-a", "00000000:3B:00.0", "", "", 41.0)


def read(line: str) -> tuple[DcgmSample, ...]:
    return parse_answer(line.encode(), {FIELD}).samples


@pytest.mark.parametrize(
    "labels",
    [
        "",
        ',device="nvidia0",modelName="NVIDIA "A100" {80GB}"',
        ',pod="a"b",hpc_job="} 7"',
        ',hpc_job="x",UUID="GPU-forged"',
        ',pod="\\"',
        f',pod="{"x" * 100_000}"',
    ],
)
def test_odd_labels(labels: str) -> None:
    """Quotes, braces, backslashes, a forged identity: what comes first counts."""
    assert read(f"{FIELD}{{{HEAD}{labels}}} 41") == (SAMPLE,)


def test_end_of_line() -> None:
    """Proxies add timestamps and carriage returns."""
    assert read(f"{FIELD}{{{HEAD}}} 4.1e1 1700000000000\r\n") == (SAMPLE,)


def test_instances_and_links() -> None:
    """Lines of links have another label for the identity."""
    labels = f'{HEAD},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    assert read(f"{FIELD}{{{labels}}} 41") == (SAMPLE._replace(gpu_instance="7"),)
    link = 'nvlink="3",gpu="0",gpu_uuid="GPU-a",pci_bus_id="00000000:3B:00.0"'
    assert read(f"{FIELD}{{{link}}} 41") == (SAMPLE._replace(link="3"),)
    assert read(f'{FIELD}{{nvlink="3",nvswitch="1"}} 41') == ()


@pytest.mark.parametrize("line", [FIELD, f"{FIELD}{{{HEAD}", f"{FIELD}{{{HEAD}}} N/A", f"{FIELD}{{{HEAD}}}"])
def test_broken_line(line: str) -> None:
    """It costs only itself."""
    assert read(f"{line}\n{FIELD}{{{HEAD}}} 41\n") == (SAMPLE,)


def test_unwanted_fields() -> None:
    """Their number shows whether this is dcgm-exporter at all."""
    text = f"# HELP DCGM_X x\nDCGM_X{{{HEAD}}} 1\nnode_load1 3\nOTHER{{a}} 1\n{FIELD}{{{HEAD}}} 41\n"
    answer = parse_answer(text.encode(), {FIELD})
    assert (len(answer.samples), answer.fields, answer.cut) == (1, 2, False)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is cut by wanted samples and by lines."""
    line = f"{FIELD}{{{HEAD}}} 41\n".encode()
    monkeypatch.setattr(dcgm, "MAX_SAMPLES", 3)
    assert parse_answer(line * 5, {FIELD})[0::2] == ((SAMPLE,) * 3, True)
    monkeypatch.setattr(dcgm, "MAX_LINES", 2)
    assert parse_answer(b"\n" * 5, {FIELD}).cut


@settings(deadline=None)  # a busy machine is no fault of the parser
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: f"{FIELD}{{{text}}} 1".encode()))
def test_any_text(text: bytes) -> None:
    """It gives samples or none, never an exception."""
    parse_answer(text, {FIELD})
