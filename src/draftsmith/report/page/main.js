// What this page plots, from the figures that stand in it.
"use strict";

(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const K = figures.num_buckets;
  const x = figures.x ? decoded(figures.x) : new Float32Array();
  const columns = {};
  for (const name of ["loss", "acceptance", "grad_norm", "lr_factor", "bucket"]) columns[name] = figures[name] ? decoded(figures[name]) : null;

  const span = (range) => (range ? [lowerBound(x, range[0]), Math.min(x.length, lowerBound(x, range[1]) + 1)] : [0, x.length]);
  const line = (label, stroke, extra) => ({ label, stroke, width: 1.6, points: { show: false }, value: (_u, v) => brief(v), spanGaps: true, ...extra });

  /** Mean of a column with its lowest and highest values as a band. */
  function banded(values, label, name = "accent") {
    return (range, width) => {
      const [from, to] = span(range), edges = cuts(from, to, Math.floor(width / 3));
      const { mean, low, high } = envelope(values, edges);
      return {
        data: [middles(x, edges), mean, low, high],
        series: [line(label, color(name)), line("lowest", "transparent"), line("highest", "transparent")],
        bands: [{ series: [3, 2], fill: color("band") }],
      };
    };
  }

  /** The loss: all steps as a band, the mean of every bucket, the mean of all. */
  function lossOf(range, width) {
    const [from, to] = span(range), edges = cuts(from, to, Math.floor(width / 3)), places = middles(x, edges);
    const { mean, low, high } = envelope(columns.loss, edges);
    const data = [places, low, high], series = [line("lowest", "transparent"), line("highest", "transparent")];
    // Few parts for buckets: a rare one has points in each, and its curve is no noisier than the others.
    const wide = cuts(0, edges.length - 1, Math.min(60, Math.ceil((to - from) / (4 * Math.max(1, K)))));
    if (K > 1) for (let bucket = 0; bucket < K; bucket++) {
      const curve = new Array(places.length).fill(null);
      const found = envelope(columns.loss, wide.map((i) => edges[i]), (i) => columns.bucket[i] === bucket);
      found.mean.forEach((value, part) => { curve[(wide[part] + wide[part + 1]) >> 1] = value; });
      data.push(curve);
      series.push(line(`bucket ${bucket}`, shade(bucket, K), { width: 1.4 }));
    }
    data.push(mean);
    series.push(line("all", color("ink"), { width: K > 1 ? 1 : 1.8, alpha: K > 1 ? .45 : 1 }));
    return { data, series, bands: [{ series: [2, 1], fill: color("band") }], hooks: { draw: [drawEvents] } };
  }

  function drawEvents(u) {
    const tones = { resume: "warn", restart: "warn", skip: "bad", skipped: "bad", failed: "bad", stall: "bad", interrupted: "warn" };
    u.ctx.save();
    for (const event of figures.events) {
      if (event.x < u.scales.x.min || event.x > u.scales.x.max) continue;
      const at = Math.round(u.valToPos(event.x, "x", true));
      u.ctx.strokeStyle = color(tones[event.kind] || "soft");
      u.ctx.globalAlpha = tones[event.kind] ? .9 : .35;
      u.ctx.setLineDash(tones[event.kind] ? [] : [3, 4]);
      u.ctx.beginPath(); u.ctx.moveTo(at, u.bbox.top); u.ctx.lineTo(at, u.bbox.top + u.bbox.height); u.ctx.stroke();
    }
    u.ctx.restore();
  }

  /** Lines from the page's small arrays, one for each of `curves`. */
  const lines = (places, curves, labels, shadeOf) => () => ({
    data: [places, ...curves],
    series: curves.map((_, i) => line(labels[i], shadeOf(i))),
  });

  /** Every step a stripe; where there are more steps than pixels, every pixel the mixture of its steps. */
  function barcode(range) {
    const [from, to] = span(range);
    const first = x[from] ?? 0, last = x[to - 1] ?? 1;
    const draw = (u) => {
      const { left, top, width, height } = u.bbox, ctx = u.ctx;
      const stripes = Math.min(to - from, Math.floor(width)), edges = cuts(from, to, stripes);
      const colors = Array.from({ length: K }, (_, bucket) => shade(bucket, K));
      ctx.save(); ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
      for (let part = 0; part + 1 < edges.length; part++) {
        const counts = new Array(K).fill(0), size = edges[part + 1] - edges[part];
        for (let i = edges[part]; i < edges[part + 1]; i++) counts[columns.bucket[i]]++;
        const a = Math.floor(left + (part * width) / (edges.length - 1)), b = Math.ceil(left + ((part + 1) * width) / (edges.length - 1));
        let y = top + height;
        counts.forEach((count, bucket) => {
          if (!count) return;
          const h = (height * count) / size;
          ctx.fillStyle = colors[bucket]; ctx.fillRect(a, y - h, b - a, h + .5); y -= h;
        });
      }
      ctx.restore();
    };
    return { data: [[first, last], [null, null]], series: [line("", "transparent")], hooks: { draw: [draw] } };
  }

  if (x.length) {
    plot("chart-acceptance", banded(columns.acceptance, "mean"));
    plot("chart-loss", lossOf, { height: 330 });
    plot("chart-grad", banded(columns.grad_norm, "mean"), { height: 170, y: { distr: 3 } });
    plot("chart-lr", banded(columns.lr_factor, "mean"), { height: 170 });
    if (figures.by_slot && figures.by_slot.slots.length) {
      const slots = figures.by_slot.slots;
      plot("chart-slots-over-steps", lines(figures.by_slot.x, slots, slots.map((_, i) => `slot ${i + 1}`), (i) => shade(i, slots.length)), { y: { range: [0, 1] } });
    }
    const sets = figures.sets.filter((set) => set.slots.length);
    if (sets.length) {
      const count = Math.max(...sets.map((set) => set.slots.length));
      plot("chart-slots", () => ({
        data: [Array.from({ length: count }, (_, i) => i + 1), ...sets.map((set) => set.slots)],
        series: sets.map((set, i) => line(set.name, shade(i, Math.max(2, sets.length)), { points: { show: true, size: 6 } })),
      }), { overSteps: false, xLabel: "slot", y: { range: [0, 1] }, xAxis: { incrs: [1, 2, 5, 10] } });
    }
    if (figures.order) {
      const { x: places, drift, remaining } = figures.order;
      const labels = drift.map((_, bucket) => `bucket ${bucket}`);
      plot("chart-barcode", barcode, { height: 120, legend: { show: false }, yAxis: { values: () => [], size: 52, grid: { show: false } }, y: { range: [0, 1] } });
      plot("chart-drift", lines(places, drift, labels, (i) => shade(i, K)));
      plot("chart-remaining", lines(places, remaining, labels, (i) => shade(i, K)), { y: { range: [0, 1] } });
    }
    stages(figures.stages);
  }

  function stages(found) {
    const holder = document.getElementById("charts-stages");
    if (!holder || !found || !found.x.length) return;
    for (const { name, shares } of found.parts) {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption"), chart = document.createElement("div");
      caption.textContent = name; chart.className = "chart"; chart.id = `chart-stage-${name}`;
      figure.append(caption, chart); holder.append(figure);
      const names = ["busy", "starved", "blocked"];
      const stacked = shares.map((_, c) => shares[0].map((_v, i) => shares.slice(0, c + 1).reduce((sum, s) => sum + (s[i] || 0), 0)));
      const share = (c) => (_u, _v, _s, i) => (i == null || shares[c][i] == null ? "–" : `${Math.round(100 * shares[c][i])} %`);
      plot(chart, () => ({
        data: [found.x, ...[...stacked].reverse()],
        series: [2, 1, 0].map((c) => ({ label: names[c], stroke: color(names[c]), fill: color(names[c]), width: 0, points: { show: false }, value: share(c) })),
      }), { height: 120, y: { range: [0, 1] } });
    }
  }

  for (const swatch of document.querySelectorAll("[data-bucket]")) swatch.style.background = shade(+swatch.dataset.bucket, K);

  // Theme: as the system says, unless the button says otherwise.
  const button = document.getElementById("theme"), root = document.documentElement, themes = ["auto", "light", "dark"];
  function repaint() {
    rebuildAll();
    for (const swatch of document.querySelectorAll("[data-bucket]")) swatch.style.background = shade(+swatch.dataset.bucket, K);
  }
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % 3];
    if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
    button.textContent = `theme: ${next}`;
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  let width = innerWidth, timer = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth; clearTimeout(timer); timer = setTimeout(rebuildAll, 120);
  });
  let themeBefore;
  addEventListener("beforeprint", () => { themeBefore = root.dataset.theme; root.dataset.theme = "light"; buildAll(); rebuildAll(); });
  addEventListener("afterprint", () => { if (themeBefore) root.dataset.theme = themeBefore; else delete root.dataset.theme; rebuildAll(); });

  buildWhenSeen();
  root.dataset.ready = "yes";
})();
