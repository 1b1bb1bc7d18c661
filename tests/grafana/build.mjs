// Bundles, into the folder that is named: check.cjs for Node; page.js and page.css for a browser.
import { build } from 'esbuild';

const [outdir] = process.argv.slice(2);
const common = { bundle: true, outdir, logLevel: 'warning', absWorkingDir: import.meta.dirname };

await build({
  ...common,
  entryPoints: ['check.ts'],
  platform: 'node',
  outExtension: { '.js': '.cjs' },
  banner: { js: "globalThis.window = globalThis; globalThis.navigator ??= { languages: ['en-US'] };" }, // Grafana reads both
});
await build({
  ...common,
  entryPoints: ['page.tsx'],
  minify: true,
  jsx: 'automatic',
  define: { 'process.env.NODE_ENV': '"production"' },
  loader: { '.woff2': 'dataurl', '.ttf': 'empty' },
});
