// The curves: overview tables, one figure per quantity, smoothing, and the way from a point to its episodes.

const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const WINDOWS = [1, 3, 5, 10];
const hiddenGroups = new Set();
const drawn = new Map();  // element -> figure
let watcher = null;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const smoothing = () => WINDOWS.find((k) => String(k) === readState().smooth) || 1;
const color = (index) => css(`--c${index % 10}`);
// Plotly reads a little markup in names; there is none in ours.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function buildCurves() {
  const controls = el("div.controls", { hidden: !data.curves.length },
    el("label", {}, "Smoothing ", el("select#smooth", { onchange: (event) => go({ smooth: event.target.value === "1" ? "" : event.target.value }, true) },
      WINDOWS.map((k) => el("option", { value: k }, k === 1 ? "none: the values as measured" : `mean of ${k} iterations, back from each`)))),
    data.groups.length > 1 && el("fieldset.runs", {}, el("legend", {}, "Runs"), data.groups.map((group, index) =>
      el("label.run", {}, el("input", { type: "checkbox", checked: true, value: index, onchange: toggleGroup }),
        el("span.swatch", { style: `background:var(--c${index % 10})`, "aria-hidden": "true" }), bdi(group.label),
        group.runs.length > 1 && el("span.note", {}, ` ${group.runs.length} seeds: mean, lowest to highest`)))),
    el("p#at.at", { hidden: true }));
  const sections = new Map();
  for (const figure of [...data.points.map((f) => ({ ...f, isPoints: true })), ...data.curves]) {
    if (!sections.has(figure.section)) sections.set(figure.section, []);
    sections.get(figure.section).push(figureCard(figure));
  }
  const groups = [...sections].map(([name, cards]) => el("section.figures", { "aria-label": name }, el("h2", {}, name), el(`div.grid${cards.length % 2 ? "" : ".pairs"}`, {}, cards)));
  const tables = el("div.tables", {}, data.tables.map(tableCard));
  if (!groups.length) groups.push(el("p.notice", {}, "No iteration has ended yet."));
  $("curves").replaceChildren(tables, controls, ...groups);
  watcher = new IntersectionObserver((seen) => seen.filter((one) => one.isIntersecting).forEach((one) => {
    watcher.unobserve(one.target);
    draw(one.target);
  }), { rootMargin: "300px" });
  document.querySelectorAll(".plot").forEach((plot) => watcher.observe(plot));
  dark.addEventListener("change", redraw);
}

function tableCard(table) {
  return el("figure.card.table", {}, el("figcaption", {}, el("strong", {}, table.title), el("span", {}, table.caption)),
    el("div.scroll", { tabindex: 0, role: "region", "aria-label": `Table: ${table.title}` }, el("table", {},
      el("thead", {}, el("tr", {}, table.columns.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, table.rows.map((row) => el("tr", {}, row.map((cell, place) => (place ? el("td", { "data-column": table.columns[place] }, cell) : el("th", { scope: "row" }, bdi(cell))))))))));
}

function figureCard(figure) {
  const plot = el("div.plot", { role: "group", "aria-label": `${figure.title}. ${summary(figure)}`, id: `plot-${figure.id}` });
  drawn.set(plot, figure);
  const values = el("details.values", {}, el("summary", {}, "Values"));
  values.addEventListener("toggle", () => values.open && values.childElementCount === 1 && values.append(valueTable(figure)));
  return el("figure.card", {}, el("figcaption", {}, el("strong", {}, visible(figure.title)), el("span", {}, figure.caption)), plot, values);
}

function summary(figure) {
  if (figure.isPoints) return figure.lines.map((line) => `${line.name}: ${line.x.map((x, i) => `${digits(line.y[i], 3)} at ${x}`).join(", ")}`).join("; ");
  return figure.curves.slice(0, 6).map((curve) =>
    `${curveName(figure, curve)}: ${digits(curve.y[0], 3)} at iteration ${curve.x[0]}, ${digits(curve.y.at(-1), 3)} at ${curve.x.at(-1)}`).join("; ");
}

function curveName(figure, curve) {
  const parts = [];
  if (data.groups.length > 1) parts.push(data.groups[curve.group].label);
  if (figure.series.length > 1) parts.push(figure.series[curve.series].name);
  return parts.join(" · ") || figure.series[curve.series].name;
}

function valueTable(figure) {
  if (figure.isPoints) {
    const rows = figure.lines.flatMap((line) => line.x.map((x, i) => [line.name, x, digits(line.y[i], 4), digits(line.low[i], 4), digits(line.high[i], 4)]));
    return tableBody(`Values: ${figure.title}`, ["line", figure.x_title, "value", "low", "high"], rows.map((row) => row.map((cell) => el("td", {}, cell))));
  }
  const iterations = [...new Set(figure.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const columns = figure.curves.map((curve) => new Map(curve.x.map((x, i) => [x, curve.y[i]])));
  const rows = iterations.map((x) => [
    el("th", { scope: "row" }, el("a", { href: linkTo({ view: "episodes", it: x, ep: "", cmp: "" }), "aria-label": `Episodes of iteration ${x}` }, x)),
    ...columns.map((column) => el("td", {}, column.has(x) ? String(Number(column.get(x).toPrecision(6))) : "–"))]);
  return tableBody(`Values: ${figure.title}`, ["iteration", ...figure.curves.map((curve) => curveName(figure, curve))], rows);
}

const tableBody = (label, columns, rows) => el("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, el("table", {},
  el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, visible(name))))),
  el("tbody", {}, rows.map((row) => el("tr", {}, row)))));

function toggleGroup(event) {
  if (event.target.checked) hiddenGroups.delete(Number(event.target.value));
  else hiddenGroups.add(Number(event.target.value));
  redraw();
}

function smoothed(values, window) {
  return values.map((_, end) => {
    const part = values.slice(Math.max(0, end + 1 - window), end + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

function traces(figure) {
  if (figure.isPoints) {
    return figure.lines.map((line, i) => ({
      x: line.x, y: line.y, name: line.name, mode: figure.is_connected ? "lines+markers" : "markers", line: { color: color(i), width: 2 }, marker: { size: 9, color: color(i) },
      error_y: { type: "data", symmetric: false, array: line.high.map((v, k) => v - line.y[k]), arrayminus: line.low.map((v, k) => line.y[k] - v), thickness: 1.5 },
    }));
  }
  const window = smoothing();
  const several = data.groups.length > 1;
  const shown = figure.curves.filter((curve) => !hiddenGroups.has(curve.group));
  if (figure.style === "parts" && several) {
    const groups = [...new Set(shown.map((curve) => curve.group))];
    return figure.series.map((series, s) => ({
      type: "bar", orientation: "h", name: series.name, marker: { color: color(s) },
      y: groups.map((g) => plain(data.groups[g].label)),
      x: groups.map((g) => shown.filter((c) => c.group === g && c.series === s).flatMap((c) => c.y.slice(c.y.length > 1 ? 1 : 0)).reduce((m, v, _, all) => m + v / all.length, 0)),
    }));
  }
  return shown.flatMap((curve) => {
    const ink = color(several ? curve.group : curve.series);
    const held = figure.series[curve.series].held_out;
    const y = held ? curve.y : smoothed(curve.y, window);
    const base = {
      x: curve.x, y, name: plain(curveName(figure, curve)), meta: [curve.group, held ? "evaluation" : "train"], mode: held || curve.x.length < 2 ? "lines+markers" : "lines",
      line: { color: ink, width: 2, dash: several ? DASHES[curve.series % 5] : held ? "dot" : "solid" }, marker: { size: held ? 8 : 5 }, cliponaxis: false,
    };
    if (figure.style === "parts") return [{ ...base, stackgroup: "all", fillcolor: faded(ink, 0.55), line: { color: ink, width: 1 } }];
    const result = [];
    if (curve.low.length) {
      const edge = { x: curve.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      const [low, high] = held ? [curve.low, curve.high] : [smoothed(curve.low, window), smoothed(curve.high, window)];
      result.push({ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faded(ink, 0.18) });
    }
    if (window > 1 && !held) result.push({ ...base, y: curve.y, showlegend: false, opacity: 0.4, line: { ...base.line, width: 1 } });
    return [...result, { ...base, showlegend: !several }];
  }).concat(several && figure.series.length > 1 ? figure.series.map((series, s) => [series, s]).filter(([, s]) => shown.some((curve) => curve.series === s)).map(([series, s]) => ({
    // Colours are named above the figures; here the dashes are.
    x: [null], y: [null], name: series.name, mode: "lines", line: { color: css("--soft"), width: 2, dash: DASHES[s] },
  })) : []);
}

// Whole iterations between ticks, eight ticks at most.
function tickStep(iterations) {
  const least = Math.max(1, (Math.max(...iterations) - Math.min(0, ...iterations)) / 8);
  const ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= least);
}

function layout(figure) {
  const grid = { gridcolor: css("--grid"), zerolinecolor: css("--grid"), linecolor: css("--grid"), automargin: true };
  const bars = figure.style === "parts" && data.groups.length > 1;
  const at = Number(readState().it);
  // A mark beyond the lines would stretch the axis.
  const marked = readState().it && !figure.isPoints && !bars && at >= 0 && figure.curves.some((curve) => at <= curve.x.at(-1));
  return {
    dragmode: touch.matches ? false : "zoom",  // dragging a finger scrolls the page
    height: 270, margin: { l: 44, r: 10, t: 8, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--font"), size: 12, color: css("--ink") }, hovermode: figure.isPoints || bars ? "closest" : "x unified", barmode: "stack",
    ...(figure.isPoints && { scattermode: "group", scattergap: 0.85 }),  // side by side, or bars would hide each other
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") }, namelength: 40 },
    legend: { orientation: "h", traceorder: "normal", y: -0.22, yanchor: "top", font: { size: 11 } }, showlegend: figure.isPoints || figure.series.length > 1,
    xaxis: { ...grid, ...(figure.isPoints || bars ? {} : { dtick: tickStep(figure.curves.flatMap((curve) => curve.x)) }), title: { text: bars ? "seconds per step" : figure.isPoints ? figure.x_title : "iteration", standoff: 6 }, type: figure.isPoints ? "category" : "linear", rangemode: "tozero" },
    yaxis: { ...grid, ticks: "outside", tickcolor: "rgba(0,0,0,0)", ticklen: 6,  // room for the markers at iteration 0
      type: figure.style === "log" ? "log" : bars ? "category" : "linear", exponentformat: "power",
      ...(figure.style === "share" ? { range: [-0.03, 1.03] } : figure.style === "zero" || figure.style === "parts" ? { rangemode: "tozero" } : {}) },
    shapes: marked ? [{ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: css("--accent"), width: 1.5, dash: "dot" } }] : [],
  };
}

function draw(plot) {
  const figure = drawn.get(plot);
  const isNew = !plot.data;
  Plotly.react(plot, traces(figure), layout(figure), { responsive: true, displayModeBar: false });
  if (!isNew || figure.isPoints) return;
  plot.on("plotly_relayout", (change) => {
    if (Object.keys(change).some((name) => name.startsWith("xaxis.range") || name === "xaxis.autorange")) Plotly.relayout(plot, { "xaxis.dtick": tickStep([0, plot.layout.xaxis.range[1] - plot.layout.xaxis.range[0]]) });
  });
  plot.on("plotly_click", (event) => {
    // One of each line at this iteration; meant is the nearest.
    const frame = plot.querySelector(".nsewdrag").getBoundingClientRect();
    const distance = ({ x, y, xaxis, yaxis }) => Math.hypot(frame.left + xaxis.d2p(x) - event.event.clientX, frame.top + yaxis.d2p(y) - event.event.clientY);
    const point = event.points.filter((one) => one.data.meta).sort((a, b) => distance(a) - distance(b))[0];
    const meta = point?.data.meta;
    if (meta) go({ view: "episodes", run: `g${meta[0]}`, split: meta[1], it: point.x, ep: "", cmp: "", rules: [], q: "", problem: "", kind: "" });
  });
}

function redraw() {
  for (const plot of drawn.keys()) if (plot.data) draw(plot);
}

function renderCurves(state) {
  $("smooth").value = smoothing();
  const at = $("at");
  at.hidden = !state.it;
  if (state.it) {
    at.replaceChildren(`Iteration ${state.it} is marked. `, el("a", { href: linkTo({ view: "episodes" }) }, "Its episodes"), " · ", el("a", { href: linkTo({ it: "" }) }, "remove the mark"));
  }
  redraw();
}
