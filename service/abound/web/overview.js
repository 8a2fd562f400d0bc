// Accuracy and size of a model, and whether its replicas agree.

import { announce, card, choice, empty, fill, h, refill, table, term } from "./dom.js";
import { ask, get, modelPath, part, post } from "./api.js";
import { isEnough, LEAST_EVENTS, LineChart } from "./charts.js";
import { decisionCard } from "./decisions.js";
import { bytes, clock, compact, count, counted, duration, moment, percent, rate } from "./format.js";
import { ruleChoice } from "./models.js";
import { QUESTION, sample } from "./sample.js";
import { taught } from "./journal.js";

const REFRESH_MS = 2000;
/** Number of answers kept to calculate rates. */
const ANSWERS_KEPT = 16;
const MOST_POINTS = 48;
const SAMPLE = "sample";
const AXES = {
  events: { title: "events learned", format: compact, said: (n) => `after ${count(n)} events` },
  time: { title: "time", format: clock, said: (time) => `on ${moment(time)}`, isTime: true },
};
const MANY_EVENTS = 1000; // after which a comparison of rules means something
const GROUPS = [
  ["head", "100 times or more"],
  ["torso", "10 to 99 times"],
  ["tail", "fewer than 10 times"],
];

export function show(root, context) {
  const { model, about, signal, problem, attempt, every, lacks } = context;
  const parts = {
    start: h("div", { class: "stack" }),
    tiles: h("dl", { class: "tiles" }),
    trouble: h("div", { hidden: true }),
    rule: h("p", { class: "note", hidden: true }, "Would the accurate rule (", h("code", {}, "sls"), ") be better here? ", h("a", { href: `#versions/${part(model)}/refit` }, "Let the job refit compare both"), " on the newest events and keep the better one."),
    worse: h("p", { class: "problem", hidden: true }),
    axis: choice("Axis", [["events", "By events"], ["time", "By time"]], "events", (chosen) => { axis = chosen; drawTrace(latest); }),
    trace: h("div", {}),
    reliability: h("div", { class: "stack" }),
    reranking: h("div", {}),
    groups: h("div", {}),
    replicas: h("div", { class: "stack" }),
    size: h("div", { class: "stack" }),
  };
  const charts = {
    trace: new LineChart({
      title: "R@1 over time",
      caption: "Every event is ranked before it is learned; R@1 is the share whose best true label came first. “All events” counts an event once, by its best label; the other lines count every label of an event, so they can all lie below it.",
      x: AXES.events,
      y: { title: "R@1, % of the events", format: percents, zero: true, most: 1 },
    }),
    reliability: new LineChart({
      title: "Share that was right, by probability",
      caption: `Of labels with a probability of 70 %, 7 in 10 should be right. Closer to the dotted line is better. Each probability was estimated before its outcome was known; the larger a point, the more labels. Points of fewer than ${LEAST_EVENTS} labels are left out.`,
      apart: true,
      x: { title: "predicted probability", format: percents, said: (n) => `predicted: ${percent(n)}`, zero: true, most: 1 },
      y: { title: "% actually right", format: percents, zero: true, most: 1 },
    }),
  };
  const decided = decisionCard(context);
  const reliable = card("Are the probabilities right?", parts.reliability);
  reliable.hidden = true;
  const reranked = card("What re-ranking has learned", parts.reranking);
  reranked.hidden = true;

  const start = card("Nothing learned yet", parts.start);
  const rest = h(
    "div",
    { class: "view" },
    parts.worse,
    parts.rule,
    parts.tiles,
    card("How well it ranks, over time", parts.axis, parts.trace),
    decided.element,
    reliable,
    reranked,
    h(
      "div",
      { class: "halves" },
      h("div", { class: "view start" }, card("Frequent and rare labels", parts.groups), card("Replicas", parts.replicas)),
      card("Size against its bounds", parts.size),
    ),
  );
  start.hidden = rest.hidden = true;
  fill(root, parts.trouble, start, rest);
  drawStart();
  let axis = "events";
  let latest = null; // the trace that is drawn
  const answers = []; // the newest counts, all of the same replicas and the same model

  every(REFRESH_MS, async () => {
    try {
      const [stats, about] = await Promise.all([
        get(`${modelPath(model)}/stats`, { signal }),
        get(modelPath(model), { signal }),
      ]);
      parts.trouble.hidden = true;
      keep(stats, about.incarnation);
      draw(stats, about);
    } catch (error) {
      if (signal.aborted) return;
      refill(parts.trouble, problem(error));
      parts.trouble.hidden = false;
    }
  });

  function drawStart() {
    const lacking = { learn: lacks("learn", "To load the sample or teach a file"), admin: lacks("admin", "") };
    const said = h("div", { role: "status" });
    const { length } = sample().instances;
    const load = h("button", { type: "button", onclick: loadSample }, `Load a sample: ${length} questions to a help desk`);
    const rule = ruleChoice(about.config.update, configure);
    fill(
      parts.start,
      h("p", {}, `A model learns from every labelled event that is sent to it. ${lacking.admin || about.classes ? "Begin" : "Choose how it ranks now: the rule is fixed after the first event. Then begin"} in one of these ways.`),
      lacking.admin || about.classes ? null : rule.element,
      h("p", {}, h("a", { href: `#try/${part(model)}` }, "Try it"), ": type a text, name its label, press Learn."),
      h("p", {}, h("a", { href: `#files/${part(model)}` }, "Teach a file"), ": a table or JSON lines with texts and labels."),
      h("p", {}, "Stream a file: ", h("code", {}, "abound learn FILE")),
      lacking.learn ? h("p", { class: "note" }, lacking.learn) : lacking.admin ? null : h("div", { class: "row" }, load, h("span", { class: "hint" }, "into a model of its own, “sample”")),
      said,
    );

    async function configure(update) {
      await attempt(said, async () => {
        Object.assign(about, await ask("PUT", modelPath(model), { body: { update }, signal }));
        fill(said, h("p", { class: "better" }, `The rule is ${update}.`));
      });
    }

    /** Learn the sample in a model of its own. Its idempotency key is fixed, so that it is learned once. */
    async function loadSample() {
      load.disabled = true;
      await attempt(said, async () => {
        const { incarnation } = await ask("PUT", modelPath(SAMPLE), { body: { update: "sls" }, signal });
        const { offset } = await post(`${modelPath(SAMPLE)}/learn`, sample(), { signal, headers: { "Idempotency-Key": "sample" } });
        taught.set(incarnation, offset);
        announce(`${length} events are learned.`);
        location.hash = `try/${SAMPLE}/${part(QUESTION)}`;
      });
      load.disabled = false;
    }
  }

  /** Keep the counts for the rates. They begin again when a replica comes or goes, since its requests would count at once. */
  function keep({ learned, classify, replicas }, incarnation) {
    const from = [incarnation, ...replicas.map((one) => one.replica)].join();
    if (answers.length && answers[0].from !== from) answers.length = 0;
    answers.push({ ...classify, learned, from, now: performance.now() / 1000 });
    if (answers.length > ANSWERS_KEPT) answers.shift();
  }

  function draw(stats, about) {
    const { window, recent, all, trace } = stats;
    start.hidden = stats.learned > 0 || about.version !== "live";
    rest.hidden = !start.hidden;
    if (rest.hidden) return;
    const begun = stats.classes > stats.all.n / 10 ? `; ${counted(stats.classes, "label")} came for the first time and could not be right` : "";
    const beside = (name) => [`of the newest ${count(window.n)} events; `, recently(recent, window, name), `, ${percent(all[name])} of all`, begun];
    drawWorse(stats);
    parts.rule.hidden = about.config.update !== "fsu" || stats.learned < MANY_EVENTS || Boolean(lacks("admin", ""));
    const tiles = [
      ["Events a second", ...eventsRate(answers)],
      [[term("R@1"), " of the live index"], ...scored(window, "R@1", beside("R@1"))],
      [[term("R@5"), " of the live index"], ...scored(window, "R@5", beside("R@5"))],
      ...servedTile(stats, about),
      ...requestsTile(answers),
      ["Classes", compact(stats.classes), stats.features === 1 ? "1 feature" : `${compact(stats.features)} features`],
      ["Serving", about.version.slice(0, 8), about.version === "live" ? "the live index" : "a version"],
    ];
    refillTiles(parts.tiles, tiles.map(([name, figure, beside]) =>
      h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "figure break" }, figure), h("dd", { class: "beside" }, beside)),
    ));
    drawTrace(trace);
    decided.draw(stats.decisions);
    reliable.hidden = stats.calibration === null;
    if (stats.calibration) drawReliability(stats.calibration);
    reranked.hidden = stats.reranking === null;
    if (stats.reranking) drawReranking(stats.reranking);
    drawGroups(recent.groups);
    drawReplicas(stats);
    drawSize(stats, about);
  }

  /** Say on top that the model has become worse: by more than chance among so few events. */
  function drawWorse({ window, recent }) {
    const fall = window["R@1"] - recent["R@1"];
    parts.worse.hidden = !isEnough(recent) || window.n < 2 * recent.n || fall < Math.max(0.05, 3 * Math.sqrt((window["R@1"] * (1 - window["R@1"])) / recent.n));
    parts.worse.textContent = `The model has become worse: R@1 is ${percent(recent["R@1"])} for the newest ${count(recent.n)} events, and ${percent(window["R@1"])} for the newest ${count(window.n)}. Look at what was taught lately, under Events.`;
  }

  function drawTrace(trace) {
    latest = trace;
    parts.axis.hidden = new Set(trace.times.filter(Boolean)).size < 2;
    const isByTime = axis === "time" && !parts.axis.hidden;
    charts.trace.options.x = isByTime ? AXES.time : AXES.events;
    const ends = isByTime ? trace.times : trace.learned;
    if (trace.learned.length === 0) {
      fill(parts.trace, empty("Too few events yet.", "The line begins after some dozens of them."));
      return;
    }
    if (!charts.trace.element.isConnected) fill(parts.trace, charts.trace.element);
    const strides = trace.learned.map(() => trace.stride);
    /** @type {object[]} */
    const series = [{ name: "all events", colour: "ink", isMain: true, points: blocks(ends, trace["R@1"], strides, trace.stride) }];
    const dashes = { torso: [6, 3], tail: [2, 3] };
    for (const [name] of GROUPS) {
      const { n, "R@1": values } = trace.groups[name];
      const points = blocks(ends, values, n, trace.stride);
      if (points.some(([, y]) => y !== null)) series.push({ name: `${name} labels`, colour: name, dash: dashes[name], points });
    }
    const last = trace["R@1"].at(-1);
    charts.trace.set({
      series,
      said: `R@1 over ${count(trace.learned.at(-1))} events, ${percent(trace["R@1"][0])} at first, ${percent(last)} at last.`,
      columns: [isByTime ? "time" : "#events", "#R@1", "#head", "#torso", "#tail"],
      rows: ends.map((end, at) => [
        isByTime ? moment(end) : count(end),
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
      [h("dt", {}, name), h("dd", {}, `${rounded(newest[measure])} over the newest ${count(newest.n)} labels, ${rounded(all[measure])} over all time`)]));
    if (charts.reliability.element.isConnected) parts.reliability.lastChild.replaceWith(facts);
    else fill(parts.reliability, charts.reliability.element, facts);
    const line = ({ n, bins }) => {
      const some = bins.filter(isEnough);
      return { points: some.map((one) => [one.estimate, one.true]), dots: some.map((one) => 2.5 + 5 * Math.sqrt(one.n / n)) };
    };
    charts.reliability.set({
      series: [
        { name: `newest ${count(newest.n)} labels`, colour: "accent", isMain: true, ...line(newest) },
        { name: "over all time", colour: "tail", dash: [6, 3], ...line(all) },
        { name: "ideal", colour: "soft", dash: [2, 3], points: [[0, 0], [1, 1]], dots: [0, 0] },
      ],
      said: `Probabilities of the newest ${count(newest.n)} labels are off by ${percent(newest.error)} on average. ${newest.bins.filter(isEnough).map((one) => `Predicted ${percent(one.estimate)}, right ${percent(one.true)}`).join(". ")}.`,
      columns: ["predicted", "#labels, newest", "#predicted, mean", "#right", "#labels, all time", "#predicted, mean", "#right"],
      rows: newest.bins.map((one, at) => [`${10 * at}–${10 * (at + 1)}\u00a0%`, ...[one, all.bins[at]].flatMap((bin) => [count(bin.n), percent(bin.estimate), percent(bin.true)])]),
    });
  }

  function drawReranking({ used, weights, n, answers, index }) {
    if (n === 0) {
      refill(parts.reranking, empty("Nothing was re-ranked yet.", "Events that have a vector and a label are counted from now on."));
      return;
    }
    const facts = [
      ["Orders the answers", used ? "yes" : "no: the order of the index is better"],
      ...["R@1", "MRR"].map((name) => [term(name), `${percent(answers[name])}, ${percent(index[name])} by the index alone`]),
      ...Object.entries(weights).map(([name, weight]) => [`Weight of ${name}`, weight.toFixed(2)]),
      ["Events", count(n)],
    ];
    refill(parts.reranking, h("dl", { class: "facts" }, facts.flatMap(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)])));
  }

  function drawGroups(groups) {
    const measures = ["R@1", "R@5", "MRR"];
    refill(
      parts.groups,
      table("Measures by how often a label had been learned", ["learned before", "#occurrences", ...measures.map((name) => `#${name}`)], GROUPS.map(([name, means]) => [
        [h("strong", {}, name), h("div", { class: "hint whole" }, means)], count(groups[name].n), ...measures.map((measure) => (isEnough(groups[name]) ? percent(groups[name][measure]) : "–")),
      ])),
      h("p", { class: "hint" }, `Over the newest 500 events, so that all rows are about the same time. A label counts each time it occurs in an event. No figure is shown for fewer than ${LEAST_EVENTS}.`),
    );
  }

  function drawReplicas(stats) {
    if (stats.replicas.length === 0) {
      fill(parts.replicas, empty("No replica has reported yet.", "They report every few seconds while the store can be reached."));
      return;
    }
    refill(
      parts.replicas,
      table(
        "Replicas, how far each has come, and how far it is behind the log",
        ["replica", "#lag", "offset, digest"],
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
            h("dt", {}, "Log"), h("dd", {}, `${counted(stats.kept.log.entries, "entry", "entries")}, ${bytes(stats.kept.log.bytes)}`),
            h("dt", {}, "History"), h("dd", {}, stats.kept.history ? `${bytes(stats.kept.history.bytes)} in ${counted(stats.kept.history.segments, "segment")}` : "none yet"),
            h("dt", {}, "Snapshot"), h("dd", {}, stats.kept.snapshot ? `${duration(stats.kept.snapshot.age)} old` : "none yet"))
        : null,
    );
  }

  function drawSize(stats, about) {
    const { config } = about;
    const names = { index: "index", features: "names of features", labels: "names of labels", counters: "counts and score", receipts: "idempotency keys", class_means: "means of labels" };
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

/** The tile of the active version, if a contest scores it on the learned events. */
function servedTile({ challengers }, { version }) {
  const served = version === "live" ? null : challengers?.versions.find((one) => one.version === version);
  return served ? [[[term("R@1"), ` of version ${version.slice(0, 8)}`], ...scored(served.window, "R@1", `newest ${count(served.window.n)} events`)]] : [];
}

/** The figure of a measure and the text beside it; no figure while there are too few events. */
function scored(window, measure, beside) {
  if (isEnough(window)) return [percent(window[measure]), beside];
  return ["–", `${counted(window.n, "event")} so far`];
}

/** Replace the figures of tiles. Names stay where they are: one may have the focus, and its tooltip be open. */
function refillTiles(element, tiles) {
  const present = new Map([...element.children].map((one) => [one.firstChild.textContent, one]));
  refill(element, tiles.map((tile) => {
    const there = present.get(tile.firstChild.textContent);
    if (there === undefined) return tile;
    [...tile.children].slice(1).forEach((one, at) => there.children[at + 1].replaceWith(one));
    return there;
  }));
}

/** Return the upper bound of a quantile of durations by their counts, as a text. */
export function quantile({ bounds }, counts, share) {
  const n = counts.reduce((sum, one) => sum + one, 0);
  let below = 0;
  const at = counts.findIndex((one) => (below += one) >= share * n);
  return at < bounds.length ? `within ${duration(bounds[at])}` : `over ${duration(bounds.at(-1))}`;
}

/** The rate of learned events; less than none after a refit counts as none. */
function eventsRate(answers) {
  const [first, last] = [answers[0], answers.at(-1)];
  return first === last ? ["–", "measuring…"] : [rate(Math.max(0, last.learned - first.learned) / (last.now - first.now)), `${count(last.learned)} in all`];
}

/** The tile of /classify. Replicas report every two seconds, so the rate of a shorter time would be wrong. */
function requestsTile(answers) {
  if (answers.length < 3 || answers.some((one) => !one.counts)) return [];
  const [first, last] = [answers[0], answers.at(-1)];
  const counts = last.counts.map((n, at) => n - first.counts[at]);
  const n = counts.reduce((sum, one) => sum + one, 0);
  const seconds = last.now - first.now;
  const beside = n ? `half ${quantile(last, counts, 0.5)}, 99 % ${quantile(last, counts, 0.99)}` : `none in ${duration(seconds)}`;
  return [["Requests to /classify a second, all models", rate(n / seconds), beside]];
}

/** The maximum number of connections of a feature: value, text, setting, and the text if there is no bound. */
function mostConnections(stats, config) {
  if (stats.in_rows) return [null, count, "rows", "one to every class"];
  return config.update === "sls" ? [config.slots, String, "slots"] : [config.d_max, String, "d_max"];
}

const percents = (share) => `${Math.round(100 * share)} %`;
const rounded = (n) => (n === null ? "–" : n.toFixed(3));

/** The score over the newest 500 events, marked where it differs from that over the newest 10,000 by 2 points. */
function recently(recent, window, name) {
  const more = recent[name] - window[name];
  return h("span", { class: more < -0.02 ? "worse" : more > 0.02 ? "better" : null }, `${percent(recent[name])} of the newest ${count(recent.n)}`);
}

/**
 * Merge neighbouring points [[x, y]...] at their mean, so that a long history stays a readable line. `ends`: their x;
 * `weights`: the number of events behind each value. A point of fewer than LEAST_EVENTS has no value.
 */
export function blocks(ends, values, weights, stride) {
  const size = Math.max(Math.ceil(ends.length / MOST_POINTS), Math.ceil(LEAST_EVENTS / stride));
  const found = [];
  for (let first = 0; first < ends.length; first += size) {
    const end = Math.min(first + size, ends.length) - 1;
    let sum = 0;
    let n = 0;
    for (let at = first; at <= end; at += 1) {
      if (values[at] === null) continue;
      sum += weights[at] * values[at];
      n += weights[at];
    }
    if (ends[end] !== null) found.push([ends[end], n >= LEAST_EVENTS ? sum / n : null]);
  }
  return found;
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
