// How well a model ranks, over time and by how often a label occurs, and whether its probabilities are right.

import { card, choice, empty, facts, fill, h, refill, table, term } from "./dom.js";
import { isEnough, LEAST_EVENTS, LineChart } from "./charts.js";
import { clock, compact, count, moment, percent } from "./format.js";

const MOST_POINTS = 48;
const AXES = {
  events: { title: "events learned", format: compact, said: (n) => `after ${count(n)} events` },
  time: { title: "time", format: clock, said: (time) => `on ${moment(time)}`, isTime: true },
};
const GROUPS = { head: "100 times or more", torso: "10 to 99 times", tail: "fewer than 10 times" };
const DASHES = { torso: [6, 3], tail: [2, 3] };
const MEASURES = ["R@1", "R@5", "MRR"];

const percents = (share) => `${Math.round(100 * share)} %`;
const rounded = (n) => (n === null ? "–" : n.toFixed(3));

/** The card of the score over time: `element`, and `draw` of the trace of `/stats`. */
export function traceCard() {
  const chart = new LineChart({
    title: "R@1 over time",
    caption: `Every event is ranked before it is learned; R@1 is the share whose best true label came first. “All events” \
counts an event once, by its best label; the other lines count every label of an event, so they can all lie below it.`,
    x: AXES.events,
    y: { title: "R@1, % of the events", format: percents, zero: true, most: 1 },
  });
  const choose = (chosen) => { axis = chosen; draw(latest); };
  const axes = choice("Axis", [["events", "By events"], ["time", "By time"]], "events", choose);
  const place = h("div", {});
  let axis = "events";
  let latest = null;

  function draw(trace) {
    latest = trace;
    axes.hidden = new Set(trace.times.filter(Boolean)).size < 2;
    const isByTime = axis === "time" && !axes.hidden;
    chart.options.x = isByTime ? AXES.time : AXES.events;
    const ends = isByTime ? trace.times : trace.learned;
    if (trace.learned.length === 0) {
      fill(place, empty("Too few events yet.", "The line begins after some dozens of them."));
      return;
    }
    if (!chart.element.isConnected) fill(place, chart.element);
    const strides = trace.learned.map(() => trace.stride);
    const all = { name: "all events", colour: "ink", isMain: true, points: blocks(ends, trace["R@1"], strides, trace.stride) };
    const groups = Object.keys(GROUPS).map((name) => {
      const { n, "R@1": values } = trace.groups[name];
      return { name: `${name} labels`, colour: name, dash: DASHES[name], points: blocks(ends, values, n, trace.stride) };
    });
    const [first, last] = [0, -1].map((at) => percent(trace["R@1"].at(at)));
    chart.set({
      series: [all, ...groups.filter((one) => one.points.some(([, y]) => y !== null))],
      said: `R@1 over ${count(trace.learned.at(-1))} events, ${first} at first, ${last} at last.`,
      columns: [isByTime ? "time" : "#events", "#R@1", "#head", "#torso", "#tail"],
      rows: ends.map((end, at) => [
        isByTime ? moment(end) : count(end),
        percent(trace["R@1"][at]),
        ...Object.keys(GROUPS).map((name) => percent(trace.groups[name]["R@1"][at])),
      ]),
    });
  }

  return { element: card("How well it ranks, over time", axes, place), draw };
}

/** The card of the probabilities: `element`, hidden unless the model has some, and `draw` of the calibration of `/stats`. */
export function reliabilityCard() {
  const chart = new LineChart({
    title: "Share that was right, by probability",
    caption: `Of labels with a probability of 70 %, 7 in 10 should be right. Closer to the dotted line is better. Each \
probability was estimated before its outcome was known; the larger a point, the more labels. Points of fewer than \
${LEAST_EVENTS} labels are left out.`,
    apart: true,
    x: { title: "predicted probability", format: percents, said: (n) => `predicted: ${percent(n)}`, zero: true, most: 1 },
    y: { title: "% actually right", format: percents, zero: true, most: 1 },
  });
  const place = h("div", { class: "stack" });
  const errors = h("div", {});
  const element = card("Are the probabilities right?", place);
  element.hidden = true;

  function draw(calibration) {
    element.hidden = calibration === null;
    if (element.hidden) return;
    const { newest, all } = calibration;
    if (all.n === 0) {
      refill(place, empty("No probabilities yet.", "They are checked against what is learned from now on."));
      return;
    }
    if (!chart.element.isConnected) fill(place, chart.element, errors);
    const newestSaid = `newest ${count(newest.n)} labels`;
    fill(errors, facts([["Error", "error"], ["Brier score", "brier"]].map(([name, measure]) =>
      [name, `${rounded(newest[measure])} over the ${newestSaid}, ${rounded(all[measure])} over all time`])));
    const line = ({ n, bins }) => {
      const some = bins.filter(isEnough);
      return { points: some.map((one) => [one.estimate, one.true]), dots: some.map((one) => 2.5 + 5 * Math.sqrt(one.n / n)) };
    };
    const outcomes = newest.bins.filter(isEnough).map((one) => `Predicted ${percent(one.estimate)}, right ${percent(one.true)}`);
    chart.set({
      series: [
        { name: newestSaid, colour: "accent", isMain: true, ...line(newest) },
        { name: "over all time", colour: "tail", dash: [6, 3], ...line(all) },
        { name: "ideal", colour: "soft", dash: [2, 3], points: [[0, 0], [1, 1]], dots: [0, 0] },
      ],
      said: `Probabilities of the ${newestSaid} are off by ${percent(newest.error)} on average. ${outcomes.join(". ")}.`,
      columns: ["predicted", ...["newest", "all time"].flatMap((time) => [`#labels, ${time}`, "#predicted, mean", "#right"])],
      rows: newest.bins.map((one, at) => [
        `${10 * at}–${10 * (at + 1)}\u00a0%`,
        ...[one, all.bins[at]].flatMap((bin) => [count(bin.n), percent(bin.estimate), percent(bin.true)]),
      ]),
    });
  }

  return { element, draw };
}

/** The measures of frequent and of rare labels. */
export function groupsTable(groups) {
  const figures = (name) => MEASURES.map((measure) => (isEnough(groups[name]) ? percent(groups[name][measure]) : "–"));
  return [
    table("Measures by how often a label had been learned",
      ["learned before", "#occurrences", ...MEASURES.map((name) => `#${name}`)],
      Object.entries(GROUPS).map(([name, means]) =>
        [[h("strong", {}, name), h("div", { class: "hint whole" }, means)], count(groups[name].n), ...figures(name)]),
    ),
    h("p", { class: "hint" }, `Over the newest 500 events, so that all rows are about the same time. A label counts each time \
it occurs in an event. No figure is shown for fewer than ${LEAST_EVENTS}.`),
  ];
}

/** What re-ranking has learned, as facts. */
export function rerankingFacts({ used, weights, n, answers, index }) {
  if (n === 0) return empty("Nothing was re-ranked yet.", "Events that have a vector and a label are counted from now on.");
  return facts([
    ["Orders the answers", used ? "yes" : "no: the order of the index is better"],
    ...["R@1", "MRR"].map((name) => [term(name), `${percent(answers[name])}, ${percent(index[name])} by the index alone`]),
    ...Object.entries(weights).map(([name, weight]) => [`Weight of ${name}`, weight.toFixed(2)]),
    ["Events", count(n)],
  ]);
}

/**
 * Merge neighbouring points [[x, y]...] at their mean, so that a long history stays a readable line. `ends`: their x;
 * `weights`: the number of events behind each value. A point of fewer than LEAST_EVENTS has no value.
 */
function blocks(ends, values, weights, stride) {
  const size = Math.max(Math.ceil(ends.length / MOST_POINTS), Math.ceil(LEAST_EVENTS / stride));
  const found = [];
  for (let first = 0; first < ends.length; first += size) {
    const end = Math.min(first + size, ends.length) - 1;
    let [sum, n] = [0, 0];
    for (let at = first; at <= end; at += 1) {
      if (values[at] === null) continue;
      sum += weights[at] * values[at];
      n += weights[at];
    }
    if (ends[end] !== null) found.push([ends[end], n >= LEAST_EVENTS ? sum / n : null]);
  }
  return found;
}
