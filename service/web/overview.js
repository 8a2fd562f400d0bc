// How well a model does, how large it is, and whether its replicas are one.

import { card, empty, fill, h, refill, table } from "./dom.js";
import { get, modelPath } from "./api.js";
import { bars, lines } from "./charts.js";
import { bytes, change, compact, count, duration, percent, rate } from "./format.js";

const REFRESH_MS = 2000;
const KEPT = 150;
const MOST_POINTS = 48;
const MOST_MARKS = 12;
const GROUPS = [
  ["head", "Head: learned 100 times or more"],
  ["torso", "Torso: 10 to 99 times"],
  ["tail", "Tail: fewer than 10 times"],
];

export function show(root, { model, signal, problem, every }) {
  const parts = {
    tiles: h("dl", { class: "tiles" }),
    trouble: h("div", { hidden: true }),
    trace: h("div", {}),
    reliability: h("div", { class: "stack" }),
    groups: h("div", {}),
    rate: h("div", {}),
    replicas: h("div", { class: "stack" }),
    size: h("div", { class: "stack" }),
  };
  const charts = {
    trace: lines({
      title: "R@1 over time",
      caption: "Every event is ranked before it is learned; R@1 is the share whose best true label came first. Upright lines mark where a change for the worse (▼) or the better (▲) was noticed; it began somewhat before.",
      x: { title: "events learned", format: compact, said: (n) => `after ${count(n)} events` },
      y: { title: "R@1, % of the events", format: percents, zero: true, most: 1 },
    }),
    groups: bars({
      title: "Measures by how often a label had been learned",
      caption: "Of the newest 10,000 labels.",
      x: { names: true },
      y: { title: "% of the labels", format: percents, zero: true, most: 1 },
    }),
    reliability: lines({
      title: "Share that was true, by probability",
      caption: "Labels of which 70 % was said should be true 7 times in 10: the nearer to the dotted line, the better. Each probability was said before its outcome was known; the larger a point, the more labels.",
      apart: true,
      x: { title: "probability that was said", format: percents, said: (n) => `said: ${percent(n)}`, zero: true, most: 1 },
      y: { title: "% that was true", format: percents, zero: true, most: 1 },
    }),
    rate: lines({
      title: "Events a second",
      low: true,
      caption: "As seen by this page, since it was opened; at most five minutes.",
      x: { title: "seconds ago", format: (n) => String(-n), said: (n) => `${-n} s ago`, whole: true, lately: -30, most: 0 },
      y: { title: "events a second", format: rate, zero: true, max: 1, ticks: 5 },
    }),
  };
  const rates = [];
  let former = null;
  const reliable = card("How far probabilities were right", parts.reliability);
  reliable.hidden = true;

  fill(
    root,
    parts.trouble,
    parts.tiles,
    card("How well it ranks, over time", parts.trace),
    reliable,
    h(
      "div",
      { class: "halves" },
      card("Frequent and rare labels", parts.groups),
      card("Events a second", parts.rate),
      card("Replicas", parts.replicas),
      card("Size against its budgets", parts.size),
    ),
  );

  every(REFRESH_MS, async () => {
    try {
      const [stats, about] = await Promise.all([
        get(`${modelPath(model)}/stats`, { signal }),
        get(modelPath(model), { signal }),
      ]);
      parts.trouble.hidden = true;
      measure(stats, about.incarnation);
      draw(stats, about);
    } catch (error) {
      if (signal.aborted) return;
      refill(parts.trouble, problem(error));
      parts.trouble.hidden = false;
    }
  });

  /**
   * Note how many events came since the answer before. Answers of replicas that are behind count as none; a model that
   * has learned less further on in its log has got another index, and one that was made anew is another one.
   */
  function measure({ learned, offset }, incarnation) {
    const now = performance.now() / 1000;
    const isOther = former !== null && former.incarnation !== incarnation;
    if (isOther) rates.length = 0;
    if (former === null || isOther || (learned < former.learned && isPast(offset, former.offset))) {
      former = { learned, offset, incarnation, now, rate: null };
      return;
    }
    const seconds = now - former.now;
    const came = Math.max(0, learned - former.learned);
    const newest = isPast(offset, former.offset) ? offset : former.offset;
    former = { learned: Math.max(learned, former.learned), offset: newest, incarnation, now, rate: came / seconds };
    rates.push([now, came / seconds]);
    if (rates.length > KEPT) rates.shift();
  }

  function draw(stats, about) {
    const { window, all, drift, trace } = stats;
    const tiles = [
      ["Events a second", rate(former.rate), former.rate === null ? "measuring…" : `${count(stats.learned)} in all`],
      ["R@1 lately", percent(window["R@1"]), drifted(drift["R@1"])],
      ["R@5 lately", percent(window["R@5"]), `${percent(all["R@5"])} over all time`],
      ["Classes", compact(stats.classes), `${compact(stats.features)} features`],
      ["Serving", about.version.slice(0, 8), about.version === "live" ? "the live index" : "a version"],
    ];
    fill(parts.tiles, tiles.map(([name, figure, beside]) =>
      h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "figure break" }, figure), h("dd", { class: "beside" }, beside)),
    ));
    drawTrace(trace, marksOf(stats));
    reliable.hidden = stats.calibration === null;
    if (stats.calibration) drawReliability(stats.calibration);
    drawGroups(window.groups, stats.learned);
    drawRate();
    drawReplicas(stats);
    drawSize(stats, about);
  }

  function drawTrace(trace, marks) {
    if (!trace || trace.learned.length === 0) {
      if (!parts.trace.querySelector(".empty")) fill(parts.trace, empty("No events yet.", h("a", { href: document.querySelector('.views a[href^="#try"]').getAttribute("href") }, "Teach it something"), ", or stream a file to it: ", h("code", {}, "abound learn FILE")));
      return;
    }
    if (!charts.trace.element.isConnected) fill(parts.trace, charts.trace.element);
    const series = [{ name: "all events", colour: "ink", isMain: true, points: blocks(trace.learned, trace["R@1"]) }];
    const dashes = { torso: [6, 3], tail: [2, 3] };
    for (const [name] of GROUPS) {
      if (trace.groups[name]["R@1"].some((value) => value !== null)) {
        const { n, "R@1": values } = trace.groups[name];
        series.push({ name: `${name} labels`, colour: name, dash: dashes[name], points: blocks(trace.learned, values, n) });
      }
    }
    const last = trace["R@1"].at(-1);
    charts.trace.set({
      series,
      marks,
      said: `R@1 over ${count(trace.learned.at(-1))} events, ${percent(trace["R@1"][0])} at first, ${percent(last)} at last.${marks.map((mark) => ` Noticed to be ${mark.isBad ? "worse" : "better"} after about ${count(mark.x)}.`).join("")}`,
      columns: ["#events", "#R@1", "#head", "#torso", "#tail"],
      rows: trace.learned.map((n, at) => [
        count(n),
        percent(trace["R@1"][at]),
        ...GROUPS.map(([name]) => percent(trace.groups[name]["R@1"][at])),
      ]),
    });
  }

  function drawReliability({ newest, all }) {
    if (all.n === 0) {
      refill(parts.reliability, empty("No probabilities yet.", "They are checked against what is learned from now on."));
      return;
    }
    const facts = h("dl", { class: "facts" }, [["Error", "error"], ["Brier score", "brier"]].flatMap(([name, measure]) =>
      [h("dt", {}, name), h("dd", {}, `${rounded(newest[measure])} lately, ${rounded(all[measure])} over all time`)]));
    if (charts.reliability.element.isConnected) parts.reliability.lastChild.replaceWith(facts);
    else fill(parts.reliability, charts.reliability.element, facts);
    const line = ({ n, bins }) => {
      const some = bins.filter((one) => one.n);
      return { points: some.map((one) => [one.estimate, one.true]), dots: some.map((one) => 2.5 + 5 * Math.sqrt(one.n / n)) };
    };
    charts.reliability.set({
      series: [
        { name: "lately", colour: "accent", isMain: true, ...line(newest) },
        { name: "over all time", colour: "tail", dash: [6, 3], ...line(all) },
        { name: "as it should be", colour: "soft", dash: [2, 3], points: [[0, 0], [1, 1]], dots: [0, 0] },
      ],
      said: `Probabilities of the newest ${count(newest.n)} labels are off by ${percent(newest.error)} on average. ${newest.bins.filter((one) => one.n).map((one) => `Said ${percent(one.estimate)}, true ${percent(one.true)}`).join(". ")}.`,
      columns: ["said", "#labels lately", "#said, mean", "#true", "#labels, all time", "#said, mean", "#true"],
      rows: newest.bins.map((one, at) => [`${10 * at}–${10 * (at + 1)}\u00a0%`, ...[one, all.bins[at]].flatMap((bin) => [count(bin.n), percent(bin.estimate), percent(bin.true)])]),
    });
  }

  function drawGroups(groups, learned) {
    if (learned === 0) {
      fill(parts.groups, empty("No labels yet.", "They show here with the first event."));
      return;
    }
    if (!charts.groups.element.isConnected) fill(parts.groups, charts.groups.element);
    const measures = ["R@1", "R@5", "MRR"];
    charts.groups.set({
      names: measures,
      series: GROUPS.map(([name]) => ({ name: `${name} (${compact(groups[name].n)} labels)`, colour: name, values: measures.map((measure) => groups[name][measure]) })),
      said: GROUPS.map(([name, means]) => `${means}: R@1 ${percent(groups[name]["R@1"])}`).join(". "),
      columns: ["labels", "#how many", ...measures.map((name) => `#${name}`)],
      rows: GROUPS.map(([name, means]) => [means, count(groups[name].n), ...measures.map((measure) => percent(groups[name][measure]))]),
    });
  }

  function drawRate() {
    if (rates.length === 0) {
      fill(parts.rate, h("p", { class: "note" }, "Measuring…"));
      return;
    }
    if (!charts.rate.element.isConnected) fill(parts.rate, charts.rate.element);
    const now = rates.at(-1)[0];
    const points = rates.map(([time, n]) => [Math.round(time - now), n]);
    charts.rate.set({
      series: [{ name: "events a second", colour: "accent", isMain: true, points }],
      said: `Events a second: ${rate(rates.at(-1)[1])} now.`,
      columns: ["#seconds ago", "#events a second"],
      rows: points.map(([x, y]) => [String(-x), rate(y)]).reverse(),
    });
  }

  function drawReplicas(stats) {
    if (stats.replicas.length === 0) {
      fill(parts.replicas, empty("No replica has said where it is.", "They do every few seconds, unless the store is away."));
      return;
    }
    refill(
      parts.replicas,
      table(
        "Replicas, how far each has come, and how far it is behind the log",
        ["replica", "#lag, entries", "offset, digest"],
        stats.replicas.map((one) => [
          [
            h("div", {}, `${one.host} `, h("span", { class: "hint whole" }, `pid ${one.pid}`)),
            h("span", { class: `tag ${one.ready ? "on" : "bad"}` }, one.ready ? "ready" : "not ready"),
          ],
          one.lag === null ? "–" : count(one.lag),
          [
            h("div", {}, h("code", {}, one.offset)),
            h("code", { class: "digest" }, one.digest ? one.digest.slice(0, 8) : "–"),
            one.digest && one.digest_offset !== one.offset ? h("span", { class: "hint whole" }, `at ${one.digest_offset}`) : null,
          ],
        ]),
      ),
      stats.kept
        ? h("dl", { class: "facts" },
            h("dt", {}, "Log"), h("dd", {}, `${count(stats.kept.log.entries)} entries, ${bytes(stats.kept.log.bytes)}`),
            h("dt", {}, "History"), h("dd", {}, stats.kept.history ? `${bytes(stats.kept.history.bytes)} in ${count(stats.kept.history.segments)} segments` : "none yet"),
            h("dt", {}, "Snapshot"), h("dd", {}, stats.kept.snapshot ? `${duration(stats.kept.snapshot.age)} old` : "none yet"))
        : null,
    );
  }

  function drawSize(stats, about) {
    const { config } = about;
    const names = { index: "index", features: "names of features", labels: "names of labels", receipts: "idempotency keys" };
    refill(
      parts.size,
      gauge("Memory", stats.memory, config.max_memory, bytes, "max_memory", "no bound of its own: all models share the memory of a replica"),
      gauge("Features", stats.features, config.max_features, count, "max_features"),
      gauge("Classes", stats.classes, config.max_classes, count, "max_classes"),
      gauge("Connections a feature, mean", Number(stats.mean_out_degree.toFixed(2)), ...mostConnections(stats, config)),
      table("Of what the memory is", ["of the memory", "#bytes"], Object.entries(stats.memory_parts).map(([name, n]) => [names[name] || name, bytes(n)])),
    );
  }
}

/** How many connections a feature may have, how that is written, which setting says so, and what is said without one. */
function mostConnections(stats, config) {
  if (stats.in_rows) return [null, count, "rows", "one to every class"];
  return config.update === "sls" ? [config.slots, String, "slots"] : [config.d_max, String, "d_max"];
}

const percents = (share) => `${Math.round(100 * share)} %`;
const rounded = (n) => (n === null ? "–" : n.toFixed(3));

/** Whether an offset of a log, `1763600000000-0.3`, is past another one. */
function isPast(offset, other) {
  const [a, b] = [offset, other].map((one) => one.split(/[-.]/).map(Number));
  const at = a.findIndex((n, place) => n !== b[place]);
  return at >= 0 && a[at] > b[at];
}

function drifted(points) {
  if (points === null || points === undefined) return "nothing ranked yet";
  const kind = points < -0.02 ? "worse" : points > 0.02 ? "better" : null;
  return h("span", { class: kind }, change(points));
}

/**
 * Neighbouring points as one, at their mean, so that a line of long life is a line: [[x, y]...]. `weights`: of how many
 * each value is the mean; all are of as many where they are left out.
 */
export function blocks(learned, values, weights = values.map(() => 1)) {
  const size = Math.ceil(learned.length / MOST_POINTS);
  const found = [];
  for (let first = 0; first < learned.length; first += size) {
    const end = Math.min(first + size, learned.length) - 1;
    let sum = 0;
    let n = 0;
    for (let at = first; at <= end; at += 1) {
      if (values[at] === null) continue;
      sum += weights[at] * values[at];
      n += weights[at];
    }
    found.push([learned[end], n ? sum / n : null]);
  }
  return found;
}

/** Where the worker noticed that the score had changed, as marks of the trace: the newest few. */
function marksOf(stats) {
  const found = stats.drift_marks.filter((mark) => mark.measure === "R@1");
  return found.slice(-MOST_MARKS).map((mark) => ({ x: mark.learned, name: mark.after < mark.before ? "▼" : "▲", isBad: mark.after < mark.before }));
}

function gauge(name, n, bound, format, setting, unbound = "no bound") {
  const share = bound ? Math.min(1, n / bound) : 0;
  const filling = h("i", {});
  filling.style.width = `${100 * share}%`;
  const said = bound ? `${format(n)} of ${format(bound)}` : `${format(n)}, ${unbound}`;
  return h(
    "div",
    { class: `gauge ${share > 0.9 ? "full" : ""}` },
    h("div", { class: "row apart" }, h("span", {}, name), h("span", { class: "hint" }, said, " ", h("code", {}, setting))),
    bound ? h("div", { class: "track", role: "meter", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": String(bound), "aria-valuenow": String(n), "aria-valuetext": said }, filling) : null,
  );
}
