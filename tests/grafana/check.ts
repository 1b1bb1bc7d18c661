// Runs panels through Grafana's code in Node: reads views of boards from the standard input, writes what each panel shows.
import { type Field, FieldType, formattedValueToString, getFieldDisplayName } from '@grafana/data';
import { readFileSync } from 'node:fs';
import { type Panel, prepare, type Prepared, tiles } from './prepare';
import type { View } from './view';

const text = (field: Field, row: number): string => formattedValueToString(field.display!(field.values[row]));

/** Texts as a reader sees them: the tiles of a stat or bar gauge, else the columns of each frame. */
function shown(panel: Panel, prepared: Prepared): string[][] {
  const { frames } = prepared;
  if (panel.type === 'stat' || panel.type === 'bargauge') {
    return frames.length ? tiles(prepared).map(({ display }) => [display.title ?? '', formattedValueToString(display)]) : [];
  }
  return frames.flatMap((frame) =>
    frame.fields
      .filter((field) => panel.type === 'table' || field.type !== FieldType.time)
      .map((field) => [getFieldDisplayName(field, frame, frames), ...field.values.map((_, row) => text(field, row))])
  );
}

async function judged(view: View) {
  Date.now = () => view.to;
  return Promise.all(
    view.panels.map(async (panel) => {
      const prepared = await prepare(panel, view.answers[panel.id] ?? {}, view.step);
      const { named, unknown, fieldConfig } = prepared;
      const empty = fieldConfig.defaults.noValue ?? 'No data';
      return { title: panel.title, named, unknown, shown: shown(panel, prepared), empty };
    })
  );
}

async function main() {
  const views: View[] = JSON.parse(readFileSync(0, 'utf8'));
  const found = [];
  for (const each of views) {
    found.push(await judged(each));
  }
  process.stdout.write(JSON.stringify(found));
}

void main();
