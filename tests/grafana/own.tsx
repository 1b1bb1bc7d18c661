// What @grafana/ui does not have, drawn by us: state timelines, status histories and lists of alerts.
import {
  type DataFrame,
  dateTimeFormat,
  type Field,
  FieldType,
  formattedValueToString,
  getFieldDisplayName,
} from '@grafana/data';
import type { CSSProperties } from 'react';
import type { Props } from './panels';
import { theme } from './prepare';

const faint: CSSProperties = { color: theme.colors.text.secondary, fontSize: 12 };
const cut: CSSProperties = { overflow: 'hidden', textOverflow: 'ellipsis', whiteSpace: 'nowrap' };
const named: CSSProperties = { ...faint, ...cut, textAlign: 'right' };
const AXIS = 20;

interface Cell {
  from: number;
  to: number;
  color: string;
  text: string;
}

/** A row of cells for each series. A timeline merges neighbours that look alike, a history has a cell for each sample. */
export function Bands({ panel, prepared, view, width, height }: Props) {
  const { frames, options } = prepared;
  const rows = frames.flatMap((frame) =>
    frame.fields.filter((field) => field.type !== FieldType.time).map((field) => ({ frame, field }))
  );
  const names = width * 0.28;
  const plot = width - names - 16;
  const across = (moment: number) => (plot * (moment - view.from)) / (view.to + view.step - view.from);
  const band = (height - AXIS) / rows.length;
  const ticks = [0.1, 0.3, 0.5, 0.7, 0.9].map((share) => view.from + share * (view.to - view.from));
  return (
    <div style={{ position: 'relative', width, height }}>
      {rows.map(({ frame, field }, row) => (
        <div key={row}>
          <div style={{ ...named, ...at(0, row * band, names - 4, band), lineHeight: `${band}px` }}>
            {band > 10 || row % Math.ceil(12 / band) === 0 ? getFieldDisplayName(field, frame, frames) : ''}
          </div>
          {cells(frame, field, view.step, panel.type === 'state-timeline' && options.mergeValues).map((cell, number) => {
            const left = Math.max(across(cell.from), 0);
            const size = Math.max(across(cell.to) - left - (panel.type === 'status-history' ? 1 : 0), 1);
            const top = (row + (1 - options.rowHeight) / 2) * band;
            const place = at(names + 4 + left, top, size, band * options.rowHeight);
            const label: CSSProperties = { fontSize: 12, lineHeight: `${place.height}px`, paddingLeft: 3 };
            return (
              <div key={number} style={{ ...place, ...cut, ...label, ...filled(cell.color) }}>
                {options.showValue !== 'never' && band > 13 && size > 8 * cell.text.length ? cell.text : ''}
              </div>
            );
          })}
        </div>
      ))}
      {ticks.map((moment) => (
        <div key={moment} style={{ ...named, ...at(names + across(moment) - 34, height - AXIS, 68, AXIS) }}>
          {dateTimeFormat(moment, { format: 'HH:mm:ss', timeZone: 'utc' })}
        </div>
      ))}
    </div>
  );
}

const at = (left: number, top: number, width: number, height: number) =>
  ({ position: 'absolute', left, top, width, height }) as const;
const filled = (color: string): CSSProperties => ({ background: color, color: theme.colors.getContrastText(color) });

/** The states of a series. Each lasts to the next sample, at most one and a half steps. */
function cells(frame: DataFrame, field: Field, step: number, merged: boolean): Cell[] {
  const moments = frame.fields.find((each) => each.type === FieldType.time)!.values;
  const made: Cell[] = [];
  field.values.forEach((value, index) => {
    const from = moments[index];
    const next = moments[index + 1] ?? from + step;
    const to = next - from > 1.5 * step ? from + step : next;
    const display = field.display!(value);
    const [text, color] = [formattedValueToString(display), display.color ?? theme.colors.text.disabled];
    const last = made.at(-1);
    if (merged && last && last.to === from && last.text === text && last.color === color) {
      last.to = to;
    } else {
      made.push({ from, to, text, color });
    }
  });
  return made;
}

const HIDDEN = new Set(['__name__', 'alertname', 'alertstate', 'product']);

/** In Grafana those of all rules; here those that the recording holds, or how many there are. */
export function AlertList({ panel: { options }, prepared: { frames }, width, height }: Props) {
  const alerts = frames.flatMap((frame) =>
    Array.from({ length: frame.length }, (_, row) => {
      const labels = frame.fields.filter((each) => each.type === FieldType.string);
      return Object.fromEntries(labels.map((each) => [each.name, each.values[row]]));
    })
  );
  if (options.viewMode === 'stat') {
    const step = options.statThresholds.steps.findLast((each: any) => (each.value ?? 0) <= alerts.length);
    const mapped = options.statValueMappings.map((each: any) => each.options[alerts.length]?.text).find(Boolean);
    return (
      <div style={{ ...filled(step.color), width, height, display: 'grid', placeItems: 'center', fontSize: 38 }}>
        {mapped ?? alerts.length}
      </div>
    );
  }
  return (
    <div style={{ width, height, overflow: 'hidden' }}>
      {alerts.map((labels, number) => (
        <div key={number} style={{ height: 36 }}>
          <div style={{ ...cut, fontSize: 13 }}>{labels.alertname}, firing</div>
          <div style={{ ...faint, ...cut, fontSize: 11 }}>
            {Object.entries(labels)
              .filter(([name, value]) => value && !HIDDEN.has(name))
              .map(([name, value]) => `${name}=${value}`)
              .join(' ')}
          </div>
        </div>
      ))}
      {alerts.length ? '' : 'No alerts matching filters'}
    </div>
  );
}
