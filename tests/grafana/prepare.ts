// A panel's data as Grafana's own code prepares it: transformations, defaults, overrides, units, mappings and colours.
import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  type ConfigOverrideRule,
  createTheme,
  type DataFrame,
  type DataTransformerConfig,
  dataLinksOverrideProcessor,
  displayNameOverrideProcessor,
  type Field,
  fieldMatchers,
  type FieldConfigPropertyItem,
  type FieldConfigSource,
  fieldReducers,
  type FieldDisplay,
  getFieldDisplayName,
  getFieldDisplayValues,
  getPanelOptionsWithDefaults,
  getValueFormats,
  identityOverrideProcessor,
  numberOverrideProcessor,
  PanelPlugin,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  stringOverrideProcessor,
  thresholdsOverrideProcessor,
  transformDataFrame,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';
import { type Series, type Target, toFrames } from './frames';

export interface Panel {
  id: number;
  type: string;
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  options: any;
  fieldConfig?: FieldConfigSource;
  targets?: Target[];
  transformations?: DataTransformerConfig[];
}

export interface Prepared {
  frames: DataFrame[];
  options: any;
  fieldConfig: FieldConfigSource;
  /** For each field that a transformation or an override names, by `override: name`: is it in a frame? */
  named: Record<string, boolean>;
  /** What Grafana does not know. It would leave it out without a word. */
  unknown: string[];
}

export const theme = createTheme({
  colors: { mode: 'dark' },
  typography: { fontFamily: "'Inter Variable', sans-serif" },
});
const asWritten = (text: string): string => text;
const nothing = () => null;

/** Grafana's core registers these, from the processors that its packages hold. */
const STANDARD: Array<[id: string, process: any, defaultValue?: unknown]> = [
  ['displayName', displayNameOverrideProcessor],
  ['unit', unitOverrideProcessor],
  ['min', numberOverrideProcessor],
  ['max', numberOverrideProcessor],
  ['decimals', numberOverrideProcessor],
  ['noValue', stringOverrideProcessor],
  ['links', dataLinksOverrideProcessor],
  ['mappings', valueMappingsOverrideProcessor, []],
  ['color', identityOverrideProcessor],
  [
    'thresholds',
    thresholdsOverrideProcessor,
    { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] },
  ],
];

/** The panels' own defaults, which are in Grafana's core too. */
const CUSTOM: Record<string, Record<string, unknown>> = {
  timeseries: {
    drawStyle: 'line',
    lineInterpolation: 'linear',
    lineWidth: 1,
    fillOpacity: 0,
    gradientMode: 'none',
    showPoints: 'auto',
    pointSize: 5,
    spanNulls: false,
    stacking: { mode: 'none', group: 'A' },
    axisGridShow: true,
    scaleDistribution: { type: 'linear' },
    thresholdsStyle: { mode: 'off' },
  },
  table: { align: 'auto', cellOptions: { type: 'auto' }, inspect: false },
};

standardFieldConfigEditorRegistry.setInit(() => STANDARD.map((each) => item(...each)));
standardTransformersRegistry.setInit(() =>
  [...new Set(Object.values(standardTransformers))].map((each: any) => ({
    id: each.id,
    name: each.name,
    transformation: async () => each,
    editor: nothing,
    imageDark: '',
    imageLight: '',
  }))
);

function item(id: string, process: any, defaultValue?: unknown): FieldConfigPropertyItem {
  return { id, path: id, name: id, process, defaultValue, editor: nothing, override: nothing, shouldApply: () => true };
}

/** The plugin of a type of panel, with the custom options that this panel uses. */
function plugin(panel: Panel): PanelPlugin {
  const defaults = CUSTOM[panel.type] ?? {};
  const own = Object.keys(panel.fieldConfig?.defaults.custom ?? {});
  const overridden = properties(panel).flatMap((id) => /^custom\.(.+)/.exec(id)?.[1] ?? []);
  const color = { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' };
  return new PanelPlugin(nothing).useFieldConfig({
    standardOptions: { color: { defaultValue: color } } as any,
    useCustomConfig: (builder) => {
      for (const id of new Set([...Object.keys(defaults), ...own, ...overridden])) {
        builder.addCustomEditor(item(id, identityOverrideProcessor, defaults[id]) as any);
      }
    },
  });
}

const overrides = (panel: Panel): ConfigOverrideRule[] => panel.fieldConfig?.overrides ?? [];
const properties = (panel: Panel): string[] => overrides(panel).flatMap((each) => each.properties.map((one) => one.id));

const some = (frames: DataFrame[], is: (field: Field, frame: DataFrame) => boolean | undefined): boolean =>
  frames.some((frame) => frame.fields.some((field) => is(field, frame)));

export async function prepare(panel: Panel, answers: Record<string, Series[]>, step: number): Promise<Prepared> {
  const named: Record<string, boolean> = {};
  let frames = toFrames(panel.targets ?? [], answers, step);
  for (const each of panel.transformations ?? []) {
    for (const name of (NAMES[each.id] ?? nothing)(each.options) ?? []) {
      named[`${each.id}: ${name}`] = some(frames, (field, one) => getFieldDisplayName(field, one, frames) === name);
    }
    frames = await lastValueFrom(transformDataFrame([each], frames, { interpolate: asWritten }));
  }
  for (const { matcher } of overrides(panel)) {
    const matches = fieldMatchers.getIfExists(matcher.id)?.get(matcher.options);
    named[`override: ${matcher.options}`] = some(frames, (field, one) => matches?.(field, one, frames));
  }
  const kind = plugin(panel);
  const { options, fieldConfig } = getPanelOptionsWithDefaults({
    plugin: kind,
    currentOptions: panel.options,
    currentFieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] },
    isAfterPluginChange: false,
  });
  frames = applyFieldOverrides({
    data: frames,
    fieldConfig,
    fieldConfigRegistry: kind.fieldConfigRegistry,
    replaceVariables: asWritten,
    theme,
    timeZone: 'utc',
  });
  cacheFieldDisplayNames(frames);
  return { frames, options, fieldConfig, named, unknown: unknown(panel) };
}

/** What a stat or a bar gauge shows. */
export function tiles({ frames, options, fieldConfig }: Prepared): FieldDisplay[] {
  return getFieldDisplayValues({
    data: frames,
    fieldConfig,
    reduceOptions: options.reduceOptions,
    replaceVariables: asWritten,
    theme,
    timeZone: 'utc',
  });
}

/** The fields that a transformation names. One that is missing here is unknown, so that no name stays unseen. */
const NAMES: Record<string, (options: any) => string[]> = {
  merge: () => [],
  filterFieldsByName: ({ include, exclude }) => [...(include?.names ?? []), ...(exclude?.names ?? [])],
  organize: (options) =>
    ['excludeByName', 'includeByName', 'indexByName', 'renameByName'].flatMap((each) => Object.keys(options[each] ?? {})),
};

const UNITS = new Set(getValueFormats().flatMap((each) => each.submenu.map((one) => one.value)));
const OF_A_TEXT = /^(prefix|suffix|time|si|count|currency|bool):./;

function unknown(panel: Panel): string[] {
  const units = [
    panel.fieldConfig?.defaults.unit,
    ...overrides(panel).flatMap((each) => each.properties.filter((one) => one.id === 'unit').map((one) => one.value)),
  ];
  const reducers = [...(panel.options?.reduceOptions?.calcs ?? []), ...(panel.options?.legend?.calcs ?? [])];
  return [
    ...(panel.transformations ?? [])
      .filter((each) => !standardTransformersRegistry.getIfExists(each.id) || !NAMES[each.id])
      .map((each) => `transformation ${each.id}`),
    ...units.filter((each) => each && !UNITS.has(each) && !OF_A_TEXT.test(each)).map((each) => `unit ${each}`),
    ...reducers.filter((each) => !fieldReducers.getIfExists(each)).map((each) => `calculation ${each}`),
    ...overrides(panel)
      .filter((each) => !fieldMatchers.getIfExists(each.matcher.id))
      .map((each) => `matcher ${each.matcher.id}`),
    ...[...Object.keys(panel.fieldConfig?.defaults ?? {}), ...properties(panel)]
      .filter((id) => !id.startsWith('custom') && !standardFieldConfigEditorRegistry.getIfExists(id))
      .map((id) => `option ${id}`),
  ];
}
