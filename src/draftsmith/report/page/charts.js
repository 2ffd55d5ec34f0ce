// Plots with uPlot: one look for all of them, one range of steps for all that stand over steps.
"use strict";

const charts = [];
const sync = uPlot.sync("steps");

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

/** Colour of item `index` of `count` on the page's scale. */
function shade(index, count) {
  const stops = color("scale").split(",").map((s) => parseInt(s.trim().slice(1), 16));
  const place = (index / Math.max(1, count - 1)) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const mixed = [16, 8, 0].map((bit) => {
    const a = (stops[low] >> bit) & 255, b = (stops[low + 1] >> bit) & 255;
    return Math.round(a + (b - a) * (place - low));
  });
  return `rgb(${mixed.join(",")})`;
}

function faded(text, alpha) { return text.startsWith("rgb(") ? text.replace("rgb(", "rgba(").replace(")", `,${alpha})`) : text; }

const brief = (value) => {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return size >= 100 ? value.toFixed(0) : String(+value.toPrecision(size < 1 ? 3 : 4));
};

function axis(extra) {
  return { stroke: () => color("soft"), grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif",
    values: (_u, ticks) => ticks.map((t) => (t == null ? "" : brief(t))), ...extra };
}

/** A plot in the element `id`. make(range, width) -> {data, series, bands?, ...}; range is null for all steps. */
function plot(id, make, { height = 210, overSteps = true, ...options } = {}) {
  const holder = typeof id === "string" ? document.getElementById(id) : id;
  if (!holder) return;
  charts.push({ holder, make, height, overSteps, options, range: null, u: null });
}

function build(chart) {
  const { holder, make, height, overSteps, options } = chart;
  const width = Math.max(240, Math.floor(holder.clientWidth));
  const made = make(chart.range, width);
  const { data, series, bands, hooks = {}, ...rest } = made;
  if (chart.u) chart.u.destroy();
  holder.replaceChildren();
  chart.u = new uPlot({
    width, height, bands,
    series: overSteps || options.xLabel ? [{ label: options.xLabel || "step", value: (_u, v) => (v == null ? "–" : Math.round(v).toLocaleString("en")) }, ...series] : series,
    scales: { x: { time: false, ...(overSteps && chart.range ? { range: () => chart.range } : {}), ...(options.xScale || {}) }, y: options.y || {} },
    axes: [axis({ space: 60, size: 28, ...(options.xAxis || {}) }), axis({ size: 52, ...(options.yAxis || {}) })],
    cursor: { drag: { x: overSteps, y: false, setScale: false }, sync: overSteps ? { key: "steps", setSeries: false } : undefined, points: { size: 6 } },
    legend: { live: true, ...(options.legend || {}) },
    hooks: { ...hooks, setSelect: overSteps ? [(u) => select(u)] : [] },
    ...rest,
  }, data, holder);
  if (overSteps) {
    sync.sub(chart.u);
    chart.u.over.addEventListener("dblclick", () => zoom(null));
  }
}

function select(u) {
  if (u.select.width < 6) return;
  const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  zoom([from, to]);
}

/** Show this range of steps in every plot over steps; null shows all. */
function zoom(range) {
  for (const chart of charts) if (chart.overSteps) { chart.range = range; if (chart.u) build(chart); }
  document.documentElement.dataset.zoomed = range ? "yes" : "no";
}

function rebuildAll() { for (const chart of charts) if (chart.u) build(chart); }

/** Plots are built when they come near the window, so that a long page is there at once. */
function buildWhenSeen() {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      const chart = charts.find((c) => c.holder === entry.target);
      if (!chart.u) build(chart);
    }
  }, { rootMargin: "400px" });
  for (const chart of charts) { chart.holder.style.minHeight = `${chart.height + 30}px`; seen.observe(chart.holder); }
}

function buildAll() { for (const chart of charts) if (!chart.u) build(chart); }

/** Start the page: theme, width and paper may change at any time. paint() colours what is no plot. */
function paintWith(paint) {
  const button = document.getElementById("theme"), root = document.documentElement, themes = ["auto", "light", "dark"];
  const repaint = () => { rebuildAll(); paint(); };
  const useTheme = (theme) => { if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme; };
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    useTheme(next);
    button.textContent = `theme: ${next}`;
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  let width = innerWidth, timer = 0, before = "auto";
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth; clearTimeout(timer); timer = setTimeout(rebuildAll, 120);
  });
  addEventListener("beforeprint", () => { before = root.dataset.theme || "auto"; useTheme("light"); buildAll(); repaint(); });
  addEventListener("afterprint", () => { useTheme(before); repaint(); });

  paint();
  buildWhenSeen();
  root.dataset.ready = "yes";
}
