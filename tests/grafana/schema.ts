// What Grafana's own schema allows in a dashboard. `tsc` compares each panel of ours, written as a literal, with it:
// an option, a unit's place, a kind of mapping or a mode that Grafana does not know is an error of the compiler.
import type { ConfigOverrideRule, FieldConfig } from '@grafana/data';
import type * as schema from '@grafana/schema';
import type * as barGauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as history from '@grafana/schema/dist/esm/raw/composable/statushistory/panelcfg/x/StatusHistoryPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeSeries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

/** A type as JSON holds it: members of enumerations are their texts, and the lowest threshold is null. */
type Json<T> = T extends string
  ? `${T}`
  : T extends boolean | null | undefined
    ? T
    : T extends number
      ? number | null
      : T extends object
        ? { [K in keyof T]: Json<T[K]> }
        : T;

interface Target {
  datasource: schema.DataSourceRef;
  refId: string;
  expr: string;
  legendFormat?: string;
  format?: 'time_series' | 'table';
  instant?: boolean;
  range?: boolean;
  exemplar?: boolean;
  editorMode?: 'code';
}

/** What earlier releases of Grafana read, and the SDK still writes. */
interface Earlier {
  footer?: { show: boolean; reducer: string[]; countRows?: boolean };
  hidden?: boolean;
}

type Config<Custom> = Omit<FieldConfig<Custom>, 'links'> & { links?: schema.DashboardLink[] };

type Panel<Type extends string, Options, Custom> = Json<
  Omit<schema.Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
    type: Type;
    options: Options;
    targets?: Target[];
    fieldConfig?: {
      defaults: Config<Partial<Custom>>;
      /** With the properties of each as a config, into which Grafana writes them. */
      overrides: Array<{ matcher: ConfigOverrideRule['matcher']; properties: Config<Partial<Custom>> }>;
    };
  }
>;

/** The alert list's, whose schema Grafana does not publish. */
interface AlertList {
  alertInstanceLabelFilter: string;
  alertName: string;
  dashboardAlerts: boolean;
  datasource: string;
  groupBy: string[];
  groupMode: 'default' | 'custom';
  maxItems: number;
  showInstances: boolean;
  sortOrder: 1 | 2 | 3 | 4 | 5;
  stateFilter: Record<'error' | 'firing' | 'noData' | 'normal' | 'pending' | 'recovering', boolean>;
  viewMode: 'list' | 'stat';
  statColorMode?: schema.BigValueColorMode;
  statThresholds?: schema.ThresholdsConfig;
  statValueMappings?: schema.ValueMapping[];
}

export interface Panels {
  alertlist: Panel<'alertlist', AlertList, {}>;
  bargauge: Panel<'bargauge', barGauge.Options, {}>;
  stat: Panel<'stat', stat.Options, {}>;
  'state-timeline': Panel<'state-timeline', timeline.Options, timeline.FieldConfig>;
  'status-history': Panel<'status-history', history.Options, history.FieldConfig>;
  table: Panel<'table', table.Options & Pick<Earlier, 'footer'>, table.FieldConfig & Pick<Earlier, 'hidden'>>;
  timeseries: Panel<'timeseries', timeSeries.Options, timeSeries.FieldConfig>;
}
