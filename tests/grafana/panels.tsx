// Panels by Grafana's own components, as its core puts them together.
import {
  dateTime,
  getDisplayValueAlignmentFactors,
  type TimeRange,
  VizOrientation,
} from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, type UPlotConfigBuilder, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import type { FunctionComponent } from 'react';
import { AlertList, Bands } from './own';
import { type Panel, type Prepared, theme, tiles } from './prepare';
import type { View } from './view';

export interface Props {
  panel: Panel;
  prepared: Prepared;
  view: View;
  width: number;
  height: number;
}

/** By type of panel. */
export const COMPONENTS: Record<string, FunctionComponent<Props>> = {
  alertlist: AlertList,
  bargauge: Bars,
  stat: Stat,
  'state-timeline': Bands,
  'status-history': Bands,
  table: Table,
  timeseries: Lines,
};

function Stat({ prepared, width, height }: Props) {
  const { options } = prepared;
  return (
    <VizRepeater
      {...{ width, height }}
      source={prepared}
      renderCounter={0}
      itemSpacing={3}
      autoGrid
      orientation={options.orientation ?? VizOrientation.Auto}
      getValues={() => tiles(prepared)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, count, ...size }) => (
        <BigValue
          {...size}
          {...{ theme, alignmentFactors, count }}
          value={value.display}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          justifyMode={options.justifyMode}
          textMode={options.textMode}
          disableWideLayout={!options.wideLayout}
        />
      )}
    />
  );
}

function Bars({ prepared, width, height }: Props) {
  const { options } = prepared;
  return (
    <VizRepeater
      {...{ width, height }}
      source={prepared}
      renderCounter={0}
      itemSpacing={8}
      minVizWidth={options.minVizWidth}
      minVizHeight={options.minVizHeight}
      maxVizHeight={options.maxVizHeight}
      orientation={options.orientation}
      getValues={() => tiles(prepared)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, orientation, ...size }) => (
        <BarGauge
          {...size}
          {...{ theme, alignmentFactors, orientation }}
          value={value.display}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex!)}
          displayMode={options.displayMode}
          showUnfilled={options.showUnfilled}
          valueDisplayMode={options.valueMode}
          namePlacement={options.namePlacement}
        />
      )}
    />
  );
}

function Table({ prepared, width, height }: Props) {
  const { frames, options, fieldConfig } = prepared;
  return (
    <TableNG
      {...{ width, height, fieldConfig }}
      data={frames[options.frameIndex]}
      noHeader={!options.showHeader}
      showTypeIcons={options.showTypeIcons}
      cellHeight={options.cellHeight}
      sortBy={options.sortBy}
      enableVirtualization={false}
    />
  );
}

function Lines({ prepared, view, width, height }: Props) {
  const { frames, options } = prepared;
  return (
    <TimeSeries {...{ frames, width, height }} timeRange={range(view)} timeZone="utc" legend={options.legend}>
      {(builder: UPlotConfigBuilder) => {
        builder.addHook('draw', (plot) => marked(plot, view));
        return null;
      }}
    </TimeSeries>
  );
}

const range = ({ from, to }: View): TimeRange => {
  const [start, end] = [dateTime(from), dateTime(to)];
  return { from: start, to: end, raw: { from: start, to: end } };
};

/** Grafana's core draws annotations: a dashed line where each begins. */
function marked(plot: uPlot, view: View) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { color, spans } of view.annotations) {
    ctx.strokeStyle = color;
    for (const [from] of spans) {
      const x = plot.valToPos(from, 'x', true);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}
