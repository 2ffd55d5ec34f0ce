// Curves of several runs over one another.
"use strict";

(() => {
  const { runs } = JSON.parse(document.getElementById("figures").textContent);
  const line = (label, i, extra) => ({ label, stroke: shade(i, runs.length), width: 1.7, spanGaps: true, points: { show: false }, value: (_u, v) => brief(v), ...extra });

  /** `y` of every run over its own `x`. */
  const overlaid = (x, y) => () => ({
    data: uPlot.join(runs.map((run) => [run[x], run[y]])),
    series: runs.map((run, i) => line(run.name, i)),
  });

  plot("chart-loss", overlaid("step", "loss"), { height: 300 });
  plot("chart-acceptance", overlaid("step", "acceptance"), { height: 230 });
  plot("chart-loss-tokens", overlaid("tokens", "loss"), { overSteps: false, xLabel: "tokens" });
  const measured = runs.flatMap((run, i) => run.sets.filter((set) => set.slots.length).map((set) => ({ ...set, run: run.name, i })));
  if (measured.length) {
    const count = Math.max(...measured.map((set) => set.slots.length));
    plot("chart-slots", () => ({
      data: [Array.from({ length: count }, (_, i) => i + 1), ...measured.map((set) => set.slots)],
      series: measured.map((set) => line(`${set.run}, ${set.name}`, set.i, { points: { show: true, size: 6 } })),
    }), { overSteps: false, xLabel: "slot", y: { range: [0, 1] }, xAxis: { incrs: [1, 2, 5, 10] } });
  }
  paintWith(() => {
    for (const swatch of document.querySelectorAll("[data-run]")) swatch.style.background = shade(+swatch.dataset.run, runs.length);
  });
})();
