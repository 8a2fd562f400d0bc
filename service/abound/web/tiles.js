// The figures on top of the overview.

import { h, refill, term } from "./dom.js";
import { isEnough } from "./charts.js";
import { compact, count, counted, duration, percent, rate } from "./format.js";

/** Number of answers kept to calculate rates. */
const ANSWERS_KEPT = 16;

/** The tiles: `element`, and `draw` of what `/stats` and the model say; `now`: seconds of any clock. */
export function figureTiles() {
  const element = h("dl", { class: "tiles" });
  const answers = []; // the newest counts, all of the same replicas and the same model

  /** Keep the counts for the rates. They begin again when a replica comes or goes, since its requests would count at once. */
  function keep({ learned, classify, replicas }, { incarnation }, now) {
    const from = [incarnation, ...replicas.map((one) => one.replica)].join();
    if (answers.length && answers[0].from !== from) answers.length = 0;
    answers.push({ ...classify, learned, from, now });
    if (answers.length > ANSWERS_KEPT) answers.shift();
  }

  function draw(stats, about, now = performance.now() / 1000) {
    keep(stats, about, now);
    const { window, recent, all } = stats;
    const first = `; ${counted(stats.classes, "label")} came for the first time and could not be right`;
    const ofAll = (name) => `, ${percent(all[name])} of all${stats.classes > all.n / 10 ? first : ""}`;
    const beside = (name) => [`of the newest ${count(window.n)} events; `, recently(recent, window, name), ofAll(name)];
    const tiles = [
      ["Events a second", ...eventsRate(answers)],
      ...["R@1", "R@5"].map((name) => [[term(name), " of the live index"], ...scored(window, name, beside(name))]),
      ...servedTile(stats, about),
      ...requestsTile(answers),
      ["Classes", compact(stats.classes), stats.features === 1 ? "1 feature" : `${compact(stats.features)} features`],
      ["Serving", about.version.slice(0, 8), about.version === "live" ? "the live index" : "a version"],
    ];
    refillTiles(element, tiles.map(([name, figure, said]) => h("div", { class: "tile" },
      h("dt", {}, name),
      h("dd", { class: "figure break" }, figure),
      h("dd", { class: "beside" }, said),
    )));
  }

  return { element, draw };
}

/** Return a sentence if a model has become worse, by more than chance among so few events; else null. */
export function worsening({ window, recent }) {
  const fall = window["R@1"] - recent["R@1"];
  const chance = 3 * Math.sqrt((window["R@1"] * (1 - window["R@1"])) / recent.n);
  if (!isEnough(recent) || window.n < 2 * recent.n || fall < Math.max(0.05, chance)) return null;
  const [now, then] = [recent, window].map((one) => `${percent(one["R@1"])} for the newest ${count(one.n)}`);
  return `The model has become worse: R@1 is ${now} events, and ${then}. Look at what was taught lately, under Events.`;
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

/** The tile of the active version, if a contest scores it on the learned events. */
function servedTile({ challengers }, { version }) {
  const served = version === "live" ? null : challengers?.versions.find((one) => one.version === version);
  if (!served) return [];
  const figures = scored(served.window, "R@1", `newest ${count(served.window.n)} events`);
  return [[[term("R@1"), ` of version ${version.slice(0, 8)}`], ...figures]];
}

/** The figure of a measure and the text beside it; no figure while there are too few events. */
function scored(window, measure, beside) {
  return isEnough(window) ? [percent(window[measure]), beside] : ["–", `${counted(window.n, "event")} so far`];
}

/** The score over the newest 500 events, marked where it differs from that over the newest 10,000 by 2 points. */
function recently(recent, window, name) {
  const more = recent[name] - window[name];
  const said = `${percent(recent[name])} of the newest ${count(recent.n)}`;
  return h("span", { class: more < -0.02 ? "worse" : more > 0.02 ? "better" : null }, said);
}

/** The rate of learned events; less than none after a refit counts as none. */
function eventsRate(answers) {
  const [first, last] = [answers[0], answers.at(-1)];
  if (first === last) return ["–", "measuring…"];
  return [rate(Math.max(0, last.learned - first.learned) / (last.now - first.now)), `${count(last.learned)} in all`];
}

/** The tile of /classify. Replicas report every two seconds, so the rate of a shorter time would be wrong. */
function requestsTile(answers) {
  if (answers.length < 3 || answers.some((one) => !one.counts)) return [];
  const [first, last] = [answers[0], answers.at(-1)];
  const counts = last.counts.map((n, at) => n - first.counts[at]);
  const n = counts.reduce((sum, one) => sum + one, 0);
  const seconds = last.now - first.now;
  const beside = n ? `half ${quantile(last, counts, n, 0.5)}, 99 % ${quantile(last, counts, n, 0.99)}` : `none in ${duration(seconds)}`;
  return [["Requests to /classify a second, all models", rate(n / seconds), beside]];
}

/** Return the upper bound of a quantile of durations by their counts, as a text. */
function quantile({ bounds }, counts, n, share) {
  let below = 0;
  const at = counts.findIndex((one) => (below += one) >= share * n);
  return at < bounds.length ? `within ${duration(bounds[at])}` : `over ${duration(bounds.at(-1))}`;
}
