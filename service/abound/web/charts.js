// Charts by Chart.js, loaded with the first chart. Each chart has a description and a table of its values.

import { h, refill, table } from "./dom.js";

/** A share of fewer events is not meaningful. */
export const LEAST_EVENTS = 30;
export const isEnough = ({ n }) => n >= LEAST_EVENTS;

const INK = ["ink", "soft", "line", "head", "torso", "tail", "accent", "bad", "paper"];
const charts = new Set();
let loading = null;

function load() {
  loading ??= import("./chart.js").then(() => {
    const { Chart } = globalThis;
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    return Chart;
  });
  return loading;
}

/** Return the colours of the present theme. */
function colours() {
  const probe = h("i");
  document.body.append(probe);
  const found = INK.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(found);
}

const isAlone = (points, at) => [points[at - 1], points[at + 1]].every((beside) => (beside?.[1] ?? null) === null);

/**
 * A line chart; `options`: title, caption, x, y ({title, format, said, zero, most}), and apart: the series have different x
 * values. `dots` of a series: the size of each of its points.
 */
export class LineChart {
  constructor(options) {
    this.options = options;
    this.canvas = h("canvas", { role: "img" });
    this.caption = h("figcaption", {}, options.caption || "");
    this.table = h("div", { class: "figures" });
    this.element = h(
      "figure",
      {},
      h("div", { class: "plot" }, this.canvas),
      this.caption,
      h("details", {}, h("summary", {}, "As a table"), this.table),
    );
  }

  /** Show these series: `[{name, colour, points: [[x, y]...]}]`, with a sentence and a table. */
  async set(shown) {
    this.shown = shown;
    this.canvas.setAttribute("aria-label", shown.said);
    refill(this.table, table(this.options.title, shown.columns, shown.rows));
    const Chart = await load();
    if (this.shown !== shown) return;
    if (!this.canvas.isConnected) {
      this.end();
      return;
    }
    if (this.chart) {
      Object.assign(this.chart, { data: this.data() });
      this.chart.options = this.settings();
      this.chart.update();
    } else {
      this.chart = new Chart(this.canvas, { type: "line", data: this.data(), options: this.settings() });
      charts.add(this);
    }
  }

  data() {
    const ink = colours();
    const datasets = this.shown.series.map((one) => {
      const colour = ink[one.colour];
      return {
        label: one.name,
        data: one.points.map(([x, y]) => ({ x, y })),
        borderColor: colour,
        backgroundColor: colour,
        borderWidth: one.isMain ? 2.5 : 1.5,
        borderDash: one.dash,
        // Gaps interrupt a line. A point without neighbours would be invisible, so it is drawn as a dot.
        pointRadius: one.dots ?? one.points.map((_, at) => (isAlone(one.points, at) ? 3 : 0)),
        pointHitRadius: 8,
        clip: one.dots ? 8 : undefined, // do not clip points at the edge
      };
    });
    return { datasets };
  }

  settings() {
    const ink = colours();
    const { x, y } = this.options;
    const axis = (about) => ({
      type: "linear",
      title: { display: true, text: about.title, color: ink.soft },
      ticks: {
        color: ink.soft,
        maxTicksLimit: 7,
        callback: (value) => about.format(value),
      },
      grid: { color: ink.line },
      border: { display: false },
      beginAtZero: about.zero,
      max: about.most,
    });
    const plugins = {
      legend: {
        display: this.shown.series.length > 1,
        position: "bottom",
        labels: { color: ink.ink, boxWidth: 14, boxHeight: 3, padding: 16 },
      },
      tooltip: {
        callbacks: {
          title: (items) => x.said(items[0].parsed.x),
          label: (item) => `${item.dataset.label}: ${y.format(item.parsed.y)}`,
        },
      },
    };
    return {
      responsive: true,
      maintainAspectRatio: false,
      animation: matchMedia("(prefers-reduced-motion: reduce)").matches ? false : { duration: 200 },
      interaction: { mode: this.options.apart ? "nearest" : "index", intersect: false },
      scales: { x: axis(x), y: axis(y) },
      plugins,
    };
  }

  end() {
    this.chart?.destroy();
    this.chart = null;
    charts.delete(this);
  }
}

document.addEventListener("theme", () => {
  for (const figure of charts) {
    if (!figure.canvas.isConnected) figure.end();
    else figure.set(figure.shown);
  }
});
