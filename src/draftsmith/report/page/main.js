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

  /** Acceptance in training as a band, and what decoding held-out prompts gave, where it was measured on the way. */
  function acceptance(range, width) {
    const made = banded(columns.acceptance, "mean")(range, width), { x: places, length } = figures.held_out;
    if (!places.length) return made;
    made.data = uPlot.join([made.data, [places, length]]);
    made.series.push(line("measured on held-out prompts", color("good"), { points: { show: true, size: 7 } }));
    return made;
  }

  /** Acceptance on held-out prompts in both ways, and the gap, on the axis of all steps. */
  function gap() {
    const { x: places, length, teacher_forced: forced, gap: between } = figures.held_out;
    const seen = { points: { show: true, size: 6 } };
    return {
      data: uPlot.join([[[x[0], x[x.length - 1]]], [places, forced, length, between]]),
      series: [line("teacher-forced", color("accent"), seen), line("free-running", color("good"), seen), line("gap", color("warn"), { ...seen, dash: [5, 4] })],
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
    if (figures.diagnosis) {
      data.push(interpolated(figures.diagnosis.trend, places));
      series.push(line("trend", color("ink"), { width: 1.6, dash: [7, 4] }));
    }
    return { data, series, bands: [{ series: [2, 1], fill: color("band") }], hooks: { draw: [drawEvents] } };
  }

  function interpolated(curve, places) {
    return places.map((place) => {
      const right = Math.min(curve.x.length - 1, Math.max(1, lowerBound(curve.x, place))), left = right - 1;
      const share = Math.min(1, Math.max(0, (place - curve.x[left]) / (curve.x[right] - curve.x[left] || 1)));
      return curve.values[left] + (curve.values[right] - curve.values[left]) * share;
    });
  }

  function drawEvents(u) {
    const tones = { resume: "warn", interrupted: "warn", spike: "bad", not_finite: "bad", failed: "bad", stall: "bad", checkpoint_failed: "bad" };
    u.ctx.save();
    for (const event of figures.events) {
      if (event.x < u.scales.x.min || event.x > u.scales.x.max) continue;
      const at = Math.round(u.valToPos(event.x, "x", true));
      u.ctx.strokeStyle = color(tones[event.kind] || "soft");
      u.ctx.globalAlpha = tones[event.kind] ? .9 : .25;
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
    plot("chart-acceptance", acceptance);
    plot("chart-gap", gap, { height: 170 });
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
    if (figures.diagnosis) explained(figures.diagnosis);
  }

  /** The loss taken apart: its levels as distributions, and its spectrum. */
  function explained({ levels, spectrum }) {
    const shown = levels.counts.map((counts, bucket) => ({ counts, bucket })).filter(({ counts }) => counts.some((c) => c > 0));
    plot("chart-levels", () => ({
      data: [levels.x, ...shown.map(({ counts }) => counts)],
      series: [{ label: "from the trend", value: (_u, v) => brief(v) }, ...shown.map(({ bucket }) => line(K > 0 ? `bucket ${bucket}` : "batches", K > 1 ? shade(bucket, K) : color("accent"),
        { fill: faded(K > 1 ? shade(bucket, K) : color("accent"), .14), paths: uPlot.paths.stepped({ align: 0 }) }))],
    }), { overSteps: false });
    plot("chart-spectrum", () => ({
      data: [spectrum.period, spectrum.power, spectrum.without],
      series: [{ label: "period", value: (_u, v) => brief(v) }, line("all", color("accent")), line("without buckets", color("soft"), { width: 1.2 })],
    }), { overSteps: false, xScale: { distr: 3 }, y: { distr: 3, range: (_u, _low, high) => [.1, Math.max(30, 2 * high)] } });
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

  paintWith(() => {
    for (const swatch of document.querySelectorAll("[data-bucket]")) swatch.style.background = shade(+swatch.dataset.bucket, K);
  });
})();
