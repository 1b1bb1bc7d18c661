// What Python hands over: a board, when, and what Prometheus answered.
import type { Series } from './frames';
import type { Panel } from './prepare';

export interface View {
  title: string;
  /** Names and values of the variables that a reader sees. */
  variables: Array<[name: string, value: string]>;
  panels: Panel[];
  /** By id of the panel and refId of the query. */
  answers: Record<number, Record<string, Series[]>>;
  annotations: Array<{ name: string; color: string; spans: Array<[from: number, to: number]> }>;
  /** Milliseconds since 1970, and between two points. */
  from: number;
  to: number;
  step: number;
}
