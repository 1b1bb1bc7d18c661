// A board in the browser: its head, and each panel where the JSON puts it, on Grafana's grid.
import inter from '@fontsource-variable/inter/files/inter-latin-wght-normal.woff2';
import { dateTimeFormat, ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PanelChrome, PortalContainer } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { COMPONENTS } from './panels';
import { type Panel, prepare, type Prepared, theme } from './prepare';
import type { View } from './view';

const [COLUMNS, CELL, GAP, MARGIN, HEAD] = [24, 30, 8, 12, 52];
const MARK = 'drawn by Grafana’s components from recorded data';

function place({ x, y, w, h }: Panel['gridPos']) {
  const column = (innerWidth - 2 * MARGIN + GAP) / COLUMNS;
  return {
    position: 'absolute',
    left: MARGIN + x * column,
    top: HEAD + y * (CELL + GAP),
    width: w * column - GAP,
    height: h * (CELL + GAP) - GAP,
  } as const;
}

function Shown({ panel, prepared, view }: { panel: Panel; prepared: Prepared; view: View }) {
  const style = place(panel.gridPos);
  const Component = COMPONENTS[panel.type];
  const full = panel.type === 'stat' || panel.options.viewMode === 'stat';
  const saysItself = panel.type === 'stat' || panel.type === 'alertlist';
  const empty = !saysItself && !prepared.frames.some((each) => each.length);
  return (
    <div style={style} data-panel={panel.title}>
      <PanelChrome title={panel.title} width={style.width} height={style.height} padding={full ? 'none' : 'md'}>
        {(width, height) =>
          empty ? (
            <div style={{ width, height, display: 'grid', placeItems: 'center', color: theme.colors.text.secondary }}>
              {prepared.fieldConfig.defaults.noValue ?? 'No data'}
            </div>
          ) : (
            <Component {...{ panel, prepared, view, width, height }} />
          )
        }
      </PanelChrome>
    </div>
  );
}

const time = (moment: number, format: string) => dateTimeFormat(moment, { format, timeZone: 'utc' });

function Head({ view }: { view: View }) {
  const faint = { color: theme.colors.text.secondary };
  return (
    <div style={{ display: 'flex', gap: 16, alignItems: 'center', height: HEAD, margin: `0 ${MARGIN}px` }}>
      <b style={{ fontSize: 18 }}>{view.title}</b>
      {view.variables.map(([name, value]) => (
        <span key={name} style={{ background: theme.colors.background.primary, padding: '3px 8px' }}>
          <span style={faint}>{name}</span> {value}
        </span>
      ))}
      {view.annotations.map(({ name, color }) => (
        <span key={name} style={faint}>
          <span style={{ borderLeft: `2px dashed ${color}`, marginRight: 6 }} />
          {name}
        </span>
      ))}
      <span style={{ ...faint, marginLeft: 'auto', fontSize: 12, lineHeight: 1.4, textAlign: 'right' }}>
        {time(view.from, 'YYYY-MM-DD HH:mm:ss')} to {time(view.to, 'HH:mm:ss')} UTC
        <br />
        {MARK}
      </span>
    </div>
  );
}

async function main() {
  const view: View = JSON.parse(document.getElementById('view')!.textContent!);
  Date.now = () => view.to;
  await initPluginTranslations('grafana');
  document.fonts.add(await new FontFace('Inter Variable', `url(${inter})`, { weight: '100 900' }).load());
  const prepared = await Promise.all(
    view.panels.map((each) => prepare(each, view.answers[each.id] ?? {}, view.step))
  );
  createRoot(document.getElementById('board')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Head view={view} />
      {view.panels.map((each, number) => (
        <Shown key={each.id} panel={each} prepared={prepared[number]} view={view} />
      ))}
      <PortalContainer />
    </ThemeContext.Provider>
  );
}

void main();
