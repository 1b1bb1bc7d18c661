// Draws the two pictures of the page from the data in it. All text goes in as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const LABEL_FONT = '12px system-ui, "DejaVu Sans", sans-serif';
  const LARGEST_MAP = 560;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const mix = (from, to, part) => `rgb(${from.map((each, at) => Math.round(each + part * (to[at] - each))).join(",")})`;
  const percent = (ratio) => `${ratio >= 0 ? "+" : "\u2212"}${Math.abs(100 * ratio).toFixed(1)} %`;
  const seconds = (value) =>
    value >= 1 ? `${value.toPrecision(4)} s` : value >= 1e-3 ? `${(1e3 * value).toPrecision(3)} ms` : `${Math.round(1e6 * value)} \u00b5s`;
  const span = (one, [first, last]) => (first === last ? `${one} ${first}` : `${one}s ${first}\u2013${last}`);

  function showTip(event, text) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const top = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  function hover(element, textAt) {
    element.addEventListener("pointermove", (event) => showTip(event, textAt(event)));
    element.addEventListener("pointerdown", (event) => showTip(event, textAt(event)));
    element.addEventListener("pointerleave", () => showTip(null, ""));
  }

  function canvasOf(parent, width, height) {
    const canvas = parent.querySelector("canvas") ?? parent.appendChild(document.createElement("canvas"));
    const scale = Math.max(2, devicePixelRatio || 1); // so that it is sharp on paper, too
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    return [canvas, context];
  }

  function colourOf(value, limit) {
    const part = Math.min(1, Math.abs(value) / limit);
    return mix(rgb(css("even")), rgb(css(value < 0 ? "below" : "above")), part);
  }

  // ---- ranks by steps ------------------------------------------------------------------------------------

  function mapLayout(width) {
    const map = data.map;
    const many = map.rows.length > 40;
    const stages = new Set(map.rows.map((row) => row.stage)).size > 1;
    const digits = String(Math.max(...map.rows.map((row) => row.ranks[1]))).length;
    const left = (stages ? 64 : 0) + 56 + 8 * digits;
    const separators = stages ? new Set(map.rows.map((row) => row.stage)).size - 1 : 0;
    const rowHeight = many ? Math.max(1, (LARGEST_MAP - 4 * separators) / map.rows.length) : Math.max(13, Math.min(24, 260 / map.rows.length));
    let top = data.map.events.length ? 16 : 4;
    let stage = map.rows[0]?.stage;
    const tops = map.rows.map((row) => {
      if (row.stage !== stage) {
        top += 4;
        stage = row.stage;
      }
      const at = top;
      top += rowHeight;
      return at;
    });
    return { left, stages, rowHeight, tops, bottom: top, columnWidth: (width - left - 2) / map.columns.length };
  }

  function drawMap() {
    const map = data.map;
    const figure = document.getElementById("map");
    if (!map) return;
    const width = figure.clientWidth;
    const layout = mapLayout(width);
    const [canvas, context] = canvasOf(figure, width, layout.bottom + 26);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Residual of each rank in each step. The table below has the same in figures.");
    context.clearRect(0, 0, width, layout.bottom + 26);
    drawCells(context, layout);
    drawRowLabels(context, layout);
    drawStepAxis(context, layout);
    canvas.dataset.left = layout.left; // for whoever looks a cell up
    if (!canvas.dataset.hovers) {
      canvas.dataset.hovers = "yes";
      hover(canvas, mapText);
    }
    drawLegend(figure);
  }

  function drawCells(context, layout) {
    const map = data.map;
    map.values.forEach((row, y) => {
      row.forEach((value, x) => {
        const [from, to] = [x, x + 1].map((each) => layout.left + each * layout.columnWidth);
        context.fillStyle = value === null ? css("gap") : colourOf(value / 1000, map.limit);
        context.fillRect(from, layout.tops[y], to - from + 0.3, layout.rowHeight - (layout.rowHeight > 8 ? 1 : 0));
      });
    });
  }

  function drawRowLabels(context, layout) {
    context.textBaseline = "middle";
    context.textAlign = "right";
    const taken = [];
    const label = (y, text, colour, font) => {
      const middle = layout.tops[y] + layout.rowHeight / 2;
      if (taken.some((each) => Math.abs(each - middle) < 13)) return;
      context.fillStyle = css(colour);
      context.font = font;
      context.fillText(text, layout.left - 8, middle);
      taken.push(middle);
    };
    const rows = [...data.map.rows.entries()];
    for (const [y, row] of rows) {
      if (row.named !== null) label(y, `\u25b8 rank ${row.named}`, "path", `700 ${LABEL_FONT}`);
    }
    for (const [y, row] of rows) label(y, `rank ${row.ranks[0]}`, "soft", LABEL_FONT);
    if (layout.stages) drawStageLabels(context, layout);
  }

  function drawStageLabels(context, layout) {
    context.font = LABEL_FONT;
    context.textAlign = "left";
    context.fillStyle = css("soft");
    const rows = data.map.rows;
    rows.forEach((row, y) => {
      if (y && rows[y - 1].stage === row.stage) return;
      context.fillText(`stage ${row.stage}`, 0, layout.tops[y] + Math.max(6, layout.rowHeight / 2));
    });
  }

  function drawStepAxis(context, layout) {
    const columns = data.map.columns;
    const every = Math.max(1, Math.ceil(64 / layout.columnWidth));
    context.font = LABEL_FONT;
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillStyle = css("soft");
    columns.forEach(([first], x) => {
      if (x % every || (columns.length - x) * layout.columnWidth < 40) return;
      const at = layout.left + x * layout.columnWidth;
      context.fillRect(at, layout.bottom + 2, 1, 4);
      context.fillText(x ? String(first) : `step ${first}`, at, layout.bottom + 8);
    });
    for (const event of data.map.events) {
      const at = layout.left + event.column * layout.columnWidth;
      context.fillStyle = css("path");
      context.beginPath();
      context.moveTo(at - 4, 3);
      context.lineTo(at + 4, 3);
      context.lineTo(at, 12);
      context.fill();
    }
  }

  function mapText(event) {
    const map = data.map;
    const canvas = event.currentTarget;
    const box = canvas.getBoundingClientRect();
    const layout = mapLayout(box.width);
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    if (top < 15 && map.events.length) {
      const near = map.events.find((each) => Math.abs(layout.left + each.column * layout.columnWidth - left) < 7);
      if (near) return near.text;
    }
    const x = Math.floor((left - layout.left) / layout.columnWidth);
    const y = layout.tops.findLastIndex((each) => each <= top);
    if (x < 0 || x >= map.columns.length || y < 0 || top > layout.bottom) return "";
    const row = map.rows[y];
    const value = map.values[y][x];
    const place = `${span("rank", row.ranks)}, stage ${row.stage}${row.ranks[0] === row.ranks[1] ? `, replica ${row.replica}` : ""}\n${span("step", map.columns[x])}`;
    if (value === null) return `${place}\nnot compared`;
    const who = row.ranks[0] === row.ranks[1] ? "" : `rank ${map.farthest[y][x]} lies farthest: `;
    return `${place}\n${who}${percent(value / 1000)} against its peers`;
  }

  function drawLegend(figure) {
    figure.querySelector(".legend")?.remove();
    const legend = figure.appendChild(document.createElement("div"));
    legend.className = "legend";
    const scale = legend.appendChild(document.createElement("div"));
    scale.className = "scale";
    const [canvas, context] = canvasOf(scale, 240, 12);
    canvas.setAttribute("aria-hidden", "true");
    for (let x = 0; x < 240; x++) {
      context.fillStyle = colourOf((data.map.limit * (x - 119.5)) / 119.5, data.map.limit);
      context.fillRect(x, 0, 1.3, 12);
    }
    const marks = scale.appendChild(document.createElement("div"));
    const limit = Math.round(100 * data.map.limit);
    for (const text of [`\u2264 \u2212${limit} %`, "as its peers", `\u2265 +${limit} %`]) {
      marks.appendChild(document.createElement("span")).textContent = text;
    }
    const notes = [];
    if (data.map.values.some((row) => row.includes(null))) notes.push(["gap", "not compared"]);
    for (const [name, text] of notes) addKey(legend, name, text);
    if (data.map.events.length) legend.appendChild(document.createElement("span")).textContent = "\u25bc single long step, left out";
    if (data.map.binned) legend.appendChild(document.createElement("span")).textContent = data.map.binned;
  }

  function addKey(legend, name, text) {
    const key = legend.appendChild(document.createElement("span"));
    key.appendChild(document.createElement("i")).style.background = `var(--${name})`;
    key.append(text);
  }

  // ---- the critical path -----------------------------------------------------------------------------------

  const LANE = 22;
  const KINDS = ["compute", "communication", "data_loading", "other"];

  function node(name, attributes, parent) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent?.appendChild(made);
    return made;
  }

  function drawTimeline() {
    const path = data.path;
    const figure = document.getElementById("timeline");
    if (!path || !path.lanes.length) return;
    figure.replaceChildren();
    const width = figure.clientWidth;
    const left = 84;
    const height = path.lanes.length * LANE + 30;
    const picture = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" }, figure);
    node("title", {}, picture).textContent = "Operations of the worst step by rank, with the critical path";
    const at = (time) => left + (time / path.seconds) * (width - left - 4);
    drawTimeAxis(picture, at, width, height);
    path.lanes.forEach((lane, y) => {
      const label = node("text", { x: left - 8, y: y * LANE + 15, "text-anchor": "end", class: lane.named ? "mark" : "" }, picture);
      label.textContent = `rank ${lane.rank}`;
    });
    path.waits.forEach(([lane, begin, end], number) => addBar(picture, at, lane, begin, end, "wait", { "data-wait": number }));
    path.bars.forEach(([lane, begin, end, , kind, critical], number) =>
      addBar(picture, at, lane, begin, end, `${KINDS[kind]}${critical ? "" : " faint"}`, { "data-bar": number }),
    );
    drawPathLine(picture, at);
    path.bars.forEach((bar) => addName(picture, at, bar));
    hover(picture, timelineText);
    const legend = figure.appendChild(document.createElement("div"));
    legend.className = "legend";
    for (const kind of KINDS) {
      if (path.bars.some((bar) => KINDS[bar[4]] === kind && bar[2] - bar[1] > path.seconds / 500)) addKey(legend, kind, kind.replace("_", " "));
    }
    addKey(legend, "wait", "wait for other ranks");
    addKey(legend, "path", "critical path; all else is faint");
  }

  function addBar(picture, at, lane, begin, end, kind, marks) {
    const x = at(begin);
    const wait = kind === "wait";
    const size = { x, y: lane * LANE + (wait ? 10 : 4), width: Math.max(0.4, at(end) - x), height: wait ? 2 : 13 };
    node("rect", { ...size, class: `piece ${kind}`, ...marks }, picture);
  }

  function addName(picture, at, [lane, begin, end, operation, , critical]) {
    const room = at(end) - at(begin) - 6;
    const name = data.path.operations[operation];
    if (!critical || room < 7 * Math.min(4, name.length)) return;
    const fits = Math.floor(room / 6.4);
    const shown = name.length > fits ? `${name.slice(0, Math.max(1, fits - 1))}\u2026` : name;
    node("text", { x: at(begin) + 4, y: lane * LANE + 14.5, class: "inside" }, picture).textContent = shown;
  }

  function drawTimeAxis(picture, at, width, height) {
    const total = data.path.seconds;
    const rough = total / Math.max(2, Math.floor(width / 130));
    const unit = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough);
    for (let time = 0; time <= total * 1.0001; time += every) {
      node("line", { x1: at(time), x2: at(time), y1: 0, y2: height - 26, class: "grid" }, picture);
      const end = at(time) > width - 40;
      const label = node("text", { x: at(time), y: height - 10, class: "soft", "text-anchor": end ? "end" : time ? "middle" : "start" }, picture);
      label.textContent = time ? seconds(time) : "0";
    }
  }

  function drawPathLine(picture, at) {
    const points = [];
    for (const [lane, since, end] of data.path.line) {
      const y = lane * LANE + 19;
      points.push(`${at(since).toFixed(2)},${y}`, `${at(end).toFixed(2)},${y}`);
    }
    node("polyline", { points: points.join(" "), class: "path" }, picture);
  }

  function timelineText(event) {
    const path = data.path;
    const { bar, wait } = event.target.dataset ?? {};
    if (bar !== undefined) {
      const [lane, begin, end, operation, kind, critical] = path.bars[bar];
      const where = `rank ${path.lanes[lane].rank}, from ${seconds(begin)} for ${seconds(end - begin)}`;
      return `${path.operations[operation]} (${KINDS[kind].replace("_", " ")})\n${where}${critical ? "\non the critical path" : ""}`;
    }
    if (wait !== undefined) {
      const [lane, begin, end, operation] = path.waits[wait];
      return `waits for other ranks in ${path.operations[operation]}\nrank ${path.lanes[lane].rank}, from ${seconds(begin)} for ${seconds(end - begin)}`;
    }
    return "";
  }

  function draw() {
    drawMap();
    drawTimeline();
  }

  let width = 0;
  new ResizeObserver(() => {
    if (document.body.clientWidth !== width) {
      width = document.body.clientWidth;
      draw();
    }
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light"; // paper is white
    draw();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    draw();
  });
  draw();
})();
