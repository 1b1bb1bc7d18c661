"""The page of `diagnose straggler --html` in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch_cli.main import main
from rankwatch_diagnosis.operations.writing import write_table
from support.browser import CHROMIUM, visit
from support.diagnosis.operations import SmallJob

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]
HOSTILE = "</script><img src=x onerror=document.title='owned'>"
PROBE = """
const pointAt = (element, x, y) => {
  const event = new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true });
  element.dispatchEvent(event);
  return document.getElementById("tip").textContent;
};
const canvas = document.querySelector("#map canvas");
const scale = canvas.width / canvas.clientWidth;
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
let [hottest, at] = [-1, 0];
for (let pixel = 0; pixel < pixels.length / 4; pixel++) {
  const inside = pixel % canvas.width > (Number(canvas.dataset.left) + 1) * scale;  // not a label
  const heat = pixels[4 * pixel] - pixels[4 * pixel + 2];
  if (inside && heat > hottest) [hottest, at] = [heat, pixel];
}
const box = canvas.getBoundingClientRect();
const [x, y] = [(at % canvas.width) / scale, Math.floor(at / canvas.width) / scale];
const hot = pointAt(canvas, box.left + x + 0.5, box.top + y + 0.5);
const bars = [...document.querySelectorAll("rect[data-bar]:not(.faint)")];
const longest = bars.reduce((one, other) => (other.getBBox().width > one.getBBox().width ? other : one));
const root = document.documentElement;
return {
  hot,
  bar: pointAt(longest, 1, 1),
  title: document.title,
  images: document.images.length,
  scripts: document.scripts.length,
  overflow: root.scrollWidth - root.clientWidth,
};
"""


@pytest.mark.parametrize("width", [1280, 700])
def test_page(width: int, tmp_path: Path) -> None:
    """The hottest cell is that of the slow rank, names stay text, and the browser does not complain."""
    job = SmallJob(dp=4, pp=2, steps=12)
    job.compute[7, 2, 1] *= 1.07
    table = job.slow_rank(5, 1.15).table()
    table = replace(table, operations=tuple(f"{each}{HOSTILE}" for each in table.operations))
    write_table(table, tmp_path / "t.parquet", "parquet")
    page = tmp_path / "t.html"
    assert main(["diagnose", "straggler", str(tmp_path / "t.parquet"), "--html", str(page)]) == 0
    seen = visit(page.read_text(), PROBE, tmp_path, width=width)
    assert seen.complaints == []
    rank, step, _ = seen.answer["hot"].splitlines()
    assert (rank, step) == ("rank 5, stage 1, replica 2", "step 7")
    assert HOSTILE in seen.answer["bar"] and "rank 5" in seen.answer["bar"]
    assert seen.answer["title"].startswith("Rank 5 computes more slowly")
    assert (seen.answer["images"], seen.answer["scripts"], seen.answer["overflow"]) == (0, 3, 0)
