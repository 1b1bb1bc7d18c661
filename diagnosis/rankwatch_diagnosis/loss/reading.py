"""From a file to findings: a table where its first line names step and loss, else a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.detection import Findings, detect
from rankwatch_diagnosis.loss.divergence import PERSISTENCE_VALUES
from rankwatch_diagnosis.loss.lines import read_lines
from rankwatch_diagnosis.loss.log import Extract, default_extract, extract_by, read_log
from rankwatch_diagnosis.loss.match_limit import MATCH_SECONDS, bounded
from rankwatch_diagnosis.loss.row import Intake, Row
from rankwatch_diagnosis.loss.table import delimiter_of, likely_delimiter, read_table

_TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def diagnose(
    path: Path,
    *,
    pattern: str | None = None,
    columns: Mapping[str, str] | None = None,
    persistence: int = PERSISTENCE_VALUES,
    match_seconds: float = MATCH_SECONDS,
) -> Findings:
    """Judge the losses of a file.

    pattern: regular expression with the groups `step` and `loss`, for the lines of a log.
    columns: name of ours -> name in a table, for those that differ.
    persistence: values in a row for which a deviation must last to be a divergence.
    match_seconds: time of the processor that `pattern` may take on one line. In the main thread only.
    Raises UserError where the file cannot be read or holds no loss, or the pattern takes too long.
    """
    intake = Intake()
    # A mistake in the pattern is told before a large file is opened.
    limited = bounded(extract_by(pattern), seconds=match_seconds) if pattern is not None else nullcontext()
    with limited as extract:
        findings = detect(_rows(path, intake, extract, columns or {}), intake, persistence=persistence)
    if not intake.losses:
        raise UserError(_no_loss(path, intake, pattern))
    return findings


def _rows(path: Path, intake: Intake, extract: Extract | None, columns: Mapping[str, str]) -> Iterator[Row]:
    if extract is not None:
        yield from read_log(read_lines(path, intake), intake, extract=extract)
        return
    lines = read_lines(path, intake)
    header = next((line for line in lines if line.strip()), "")
    delimiter = delimiter_of(header)
    if delimiter or columns or path.name.lower().endswith(_TABLE_SUFFIXES):
        delimiter = delimiter or likely_delimiter(header)
        yield from read_table(header, lines, intake, delimiter=delimiter, columns=columns)
    else:
        yield from read_log(chain([header], lines), intake, extract=default_extract)


def _no_loss(path: Path, intake: Intake, pattern: str | None) -> str:
    text = f"{path} holds no step with a loss"
    if pattern is not None:
        text += " that --pattern finds"
    if intake.skipped:
        text += f"; {intake.skipped:,} rows were skipped"
    if intake.truncated:
        text += "; the compressed file is damaged or ends in the middle"
    if pattern is None and not intake.skipped:
        text += "; expected CSV with the columns step and loss, or a log, if need be with --pattern"
    return text
