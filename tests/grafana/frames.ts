// Answers of Prometheus as the frames that Grafana's data source makes of them. Its own code is under another licence.
import { type DataFrame, type Field, FieldType } from '@grafana/data';

type Point = [seconds: number, value: string];

export interface Series {
  metric: Record<string, string>;
  values?: Point[];
  value?: Point;
}

export interface Target {
  refId: string;
  legendFormat?: string;
  format?: string;
}

/** The frames of all queries of a panel. `answers` holds the series by refId, `step` the milliseconds between two points. */
export function toFrames(targets: Target[], answers: Record<string, Series[]>, step: number): DataFrame[] {
  const tables = targets.filter((each) => each.format === 'table' && answers[each.refId]?.length).length;
  return targets.flatMap((target) => {
    const series = answers[target.refId] ?? [];
    if (target.format !== 'table') {
      return series.map((each) => seriesFrame(target, each, step));
    }
    return series.length ? [tableFrame(target, series, tables > 1)] : [];
  });
}

const points = (each: Series): Point[] => each.values ?? [each.value!];

function seriesFrame(target: Target, series: Series, step: number): DataFrame {
  const value: Field = {
    name: 'Value',
    type: FieldType.number,
    labels: series.metric,
    config: { displayNameFromDS: legend(target.legendFormat ?? '', series.metric) },
    values: points(series).map(([, text]) => toNumber(text)),
  };
  return frame(target, [{ ...times(points(series)), config: { interval: step } }, value]);
}

/** A row for each series, with a column for each label. The column of values names its query where several answered. */
function tableFrame(target: Target, series: Series[], several: boolean): DataFrame {
  const rows = series.flatMap((each) => points(each).map((point) => ({ point, metric: each.metric })));
  const labels = [...new Set(series.flatMap((each) => Object.keys(each.metric)))].sort();
  return frame(target, [
    times(rows.map((row) => row.point)),
    ...labels.map((name) => ({
      name,
      type: FieldType.string,
      config: { filterable: true },
      values: rows.map((row) => row.metric[name] ?? ''),
    })),
    {
      name: several ? `Value #${target.refId}` : 'Value',
      type: FieldType.number,
      config: {},
      values: rows.map((row) => toNumber(row.point[1])),
    },
  ]);
}

const frame = (target: Target, fields: Field[]): DataFrame => ({
  refId: target.refId,
  fields,
  length: fields[0].values.length,
});

const times = (of: Point[]): Field => ({
  name: 'Time',
  type: FieldType.time,
  config: {},
  values: of.map(([seconds]) => seconds * 1000),
});

const toNumber = (text: string): number => Number(text.replace('Inf', 'Infinity'));

function legend(template: string, labels: Record<string, string>): string {
  if (template && template !== '__auto') {
    return template.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '');
  }
  const rest = Object.entries(labels).filter(([name]) => name !== '__name__');
  if (template && rest.length === 1) {
    return rest[0][1];
  }
  const text = rest.map(([name, value]) => `${name}="${value}"`).join(', ');
  return (labels.__name__ ?? '') + (text && `{${text}}`) || 'Value';
}
