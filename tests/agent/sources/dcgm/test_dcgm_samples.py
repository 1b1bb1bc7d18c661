"""Reading the text of dcgm-exporter, whose label values are not escaped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch_agent.sources.dcgm import client
from rankwatch_agent.sources.dcgm.client import DcgmSample, parse_answer

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
def test_odd_labels_cost_nothing(labels: str) -> None:
    """Quotes, braces, backslashes, a forged identity: what stands first counts."""
    assert read(f"{FIELD}{{{HEAD}{labels}}} 41") == (SAMPLE,)


def test_a_line_may_end_in_a_timestamp_or_a_carriage_return() -> None:
    """Proxies add them."""
    assert read(f"{FIELD}{{{HEAD}}} 4.1e1 1700000000000\r\n") == (SAMPLE,)


def test_instances_and_links_are_told_apart() -> None:
    """Links have a label of their own for the identity."""
    labels = f'{HEAD},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    assert read(f"{FIELD}{{{labels}}} 41") == (SAMPLE._replace(gpu_instance="7"),)
    link = 'nvlink="3",gpu="0",gpu_uuid="GPU-a",pci_bus_id="00000000:3B:00.0"'
    assert read(f"{FIELD}{{{link}}} 41") == (SAMPLE._replace(link="3"),)
    assert read(f'{FIELD}{{nvlink="3",nvswitch="1"}} 41') == ()


@pytest.mark.parametrize("line", [FIELD, f"{FIELD}{{{HEAD}", f"{FIELD}{{{HEAD}}} N/A", f"{FIELD}{{{HEAD}}}"])
def test_a_broken_line_costs_only_itself(line: str) -> None:
    """The next one is read."""
    assert read(f"{line}\n{FIELD}{{{HEAD}}} 41\n") == (SAMPLE,)


def test_fields_nobody_asked_for_are_only_counted() -> None:
    """Their number says whether this is dcgm-exporter at all."""
    text = f"# HELP DCGM_X x\nDCGM_X{{{HEAD}}} 1\nnode_load1 3\nOTHER{{a}} 1\n{FIELD}{{{HEAD}}} 41\n"
    answer = parse_answer(text.encode(), {FIELD})
    assert (len(answer.samples), answer.fields, answer.cut) == (1, 2, False)


def test_an_answer_beyond_the_limits_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """By wanted samples and by lines."""
    line = f"{FIELD}{{{HEAD}}} 41\n".encode()
    monkeypatch.setattr(client, "MAX_SAMPLES", 3)
    assert parse_answer(line * 5, {FIELD})[0::2] == ((SAMPLE,) * 3, True)
    monkeypatch.setattr(client, "MAX_LINES", 2)
    assert parse_answer(b"\n" * 5, {FIELD}).cut


@settings(deadline=None)  # a busy machine is no fault of the parser
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: f"{FIELD}{{{text}}} 1".encode()))
def test_no_text_upsets_the_parser(text: bytes) -> None:
    """It gives samples or none."""
    parse_answer(text, {FIELD})
