// Try it: rank labels while an instance is typed, explain them, and correct them.

import { announce, breakable, card, debounced, empty, field, fill, h, named, newId, pastDoubleClick, term } from "./dom.js";
import { follow, get, modelPath, newKey, part, post } from "./api.js";
import { bars } from "./charts.js";
import { labelChips } from "./chips.js";
import { chance, count, counted, legible, score } from "./format.js";

/** The offset of the newest event that this page taught, by incarnation of a model. Answers must contain it. */
export const taught = new Map();

const TYPED_MS = 150;
const MOST_BARS = 12;
// The fields have no maximum length, which would silently cut pasted text: the service refuses what is too long.
const HOW = "One a line: name: value. A number is a value, a word means name=word, true is 1; what no number is written like (00100) is a word. On several lines of one name all values are words, true and numbers too. Or a JSON object.";

export function show(root, { model, about, text: wanted, signal, problem, lacks, refused }) {
  const name = newId("kind");
  const text = h("textarea", { rows: "5", spellcheck: "false", placeholder: "Type or paste something…", value: wanted });
  const features = h("textarea", { rows: "5", class: "mono", spellcheck: "false", placeholder: "price: 3\ncountry: FI\nurgent: true" });
  const vector = h("textarea", { rows: "5", class: "mono", spellcheck: "false", placeholder: "[0.1, -0.25, 0.5]" });
  const k = h("select", {}, [5, 10, 20, 50].map((n) => h("option", { value: n, selected: n === 10 }, String(n))));
  const version = h("select", {}, h("option", { value: "" }, "active"), h("option", { value: "live" }, "live index"));
  const probable = h("select", {}, [0, 0.1, 0.25, 0.5, 0.75, 0.9].map((p) => h("option", { value: p }, p ? `${100 * p} %` : "any")));
  const probability = field("Least probability", probable);
  const chips = labelChips("Right labels", { suggest: (prefix) => get(`${modelPath(model)}/labels?limit=20&prefix=${part(prefix)}`, { signal }), changed: mark });
  const rejected = new Set();
  const weight = h("select", {}, [0.1, 0.5, 1, 2, 5, 10].map((w) => h("option", { value: w, selected: w === 1 }, String(w))));
  const effect = h("p", { class: "hint" });
  const parts = { text: field("Text", text), features: field("Features", features, HOW), vector: field("Vector", vector, "A list of numbers in JSON, such as an embedding."), ranks: h("div", { class: "stack" }), because: h("div", { class: "stack" }), learned: h("div", { class: "stack", role: "status" }) };
  const chart = bars({
    title: "What each feature adds to the score",
    sideways: true,
    rowHeight: 30,
    x: { title: "contribution to the score", format: (n) => score(n), zero: true },
    y: { names: true },
  });
  let kind = "text";
  let chosen = null; // the label to explain: clicked or just learned; the first label while it is not among the ranked ones
  let answered = null;
  let asked = 0;
  let before = null;
  let teaching = false;
  let unsure = null; // a request without an answer, and its idempotency key: a retry is learned once

  const lacking = { classify: lacks("classify", "To see labels ranked"), learn: lacks("learn", "To teach it") };
  const learn = h("button", { class: "primary" }, "Learn");
  const choice = (value, said) =>
    h("label", {}, h("input", { type: "radio", name, value, checked: value === kind, onchange: () => use(value) }), said);
  parts.features.hidden = parts.vector.hidden = true;
  const learnsVectors = about.config.update === "sls";
  fill(
    root,
    h(
      "div",
      { class: "trial" },
      card(
        "An instance",
        h("div", { class: "choice", role: "radiogroup", "aria-label": "Kind of instance" }, choice("text", "Text"), choice("features", "Features"), learnsVectors ? choice("vector", "Vector") : null),
        parts.text,
        parts.features,
        parts.vector,
      ),
      card("Ranked labels", parts.ranks),
      card(
        "Teach it",
        lacking.learn ? h("p", { class: "note" }, lacking.learn) : h(
          "form",
          { class: "stack", onsubmit: (event) => { event.preventDefault(); teach(); } },
          chips.element,
          field("Weight", weight),
          h("div", { class: "row" }, learn, h("span", { class: "hint" }, "or Ctrl+Enter")),
          effect,
        ),
        parts.learned,
      ),
      card("Options", h("div", { class: "fields" }, field("Labels at most", k), field("Ranked by", version), probability)),
    ),
    card("Why", parts.because),
  );

  const typed = debounced(() => rank(), TYPED_MS);
  for (const one of [text, features, vector]) one.addEventListener("input", () => { before = null; rejected.clear(); typed(); });
  k.addEventListener("change", () => rank());
  version.addEventListener("change", () => rank());
  probable.addEventListener("change", () => rank());
  document.addEventListener("keydown", press, { signal });
  listVersions();
  rank();

  function use(value) {
    kind = value;
    rejected.clear();
    parts.text.hidden = kind !== "text";
    parts.features.hidden = kind !== "features";
    parts.vector.hidden = kind !== "vector";
    fill(parts.learned);
    rank();
  }

  /** Return the present instance, or null if it is empty; throw an Error if it cannot be read. */
  function instance() {
    if (kind === "text") return text.value.trim() ? { text: text.value } : null;
    if (kind === "vector") return vector.value.trim() ? { vector: readJson(vector.value) } : null;
    return features.value.trim() ? { features: readFeatures(features.value) } : null;
  }

  /** Return the present instance, or null if it is empty or invalid: the error is already shown beside the labels. */
  function readable() {
    try {
      return instance();
    } catch {
      return null;
    }
  }

  /** Show this in place of labels. */
  function withoutLabels(...said) {
    answered = null;
    fill(parts.ranks, ...said);
    fill(parts.because, h("p", { class: "note" }, "Choose a label, and see which features speak for it."));
  }

  async function rank() {
    const number = (asked += 1);
    offerProbability();
    if (lacking.classify) {
      withoutLabels(h("p", { class: "note" }, lacking.classify));
      return;
    }
    let given;
    try {
      given = instance();
    } catch (error) {
      withoutLabels(h("p", { class: "worry" }, error.message));
      return;
    }
    if (given === null) {
      withoutLabels(about.learned ? empty("Nothing typed yet.", "Labels show here as you type.") : empty("This model has learned nothing yet.", lacking.learn ?? "Type something, name its label, and press Learn."));
      return;
    }
    const request = { ...given, k: Number(k.value), names: true, explain: ["", "live"].includes(version.value) };
    if (asksProbability()) request.min_probability = Number(probable.value);
    if (version.value) request.version = version.value;
    const least = taught.get(about.incarnation);
    if (least) request.min_offset = least;
    try {
      const answer = await post(`${modelPath(model)}/classify`, request, { signal });
      if (number !== asked) return; // a newer request was sent meanwhile
      if ((!version.value && answer.version !== about.version) || isOtherwise(answer)) lookAgain();
      answered = { ...answer, isLimited: "min_probability" in request };
      draw();
    } catch (error) {
      if (number !== asked || signal.aborted) return;
      if (error.said?.field === "min_probability") {
        await lookAgain();
        if (number !== asked || signal.aborted) return;
        if (!asksProbability()) return rank(); // the refused option is no longer offered
      }
      withoutLabels(problem(error));
    }
  }

  /** Return whether an answer shows that the model's calibration was turned on or off. */
  function isOtherwise({ version: by, labels: [first] }) {
    if (by !== "live" || first === undefined) return false;
    const mayRerank = about.config.rerank !== false && (kind === "vector" || about.config.analyzer.embed !== null);
    return (first.probability !== undefined) !== about.config.calibrate && !mayRerank;
  }

  /** Reload the model: its active version or its configuration has changed. */
  async function lookAgain() {
    try {
      Object.assign(about, await get(modelPath(model), { signal }));
      offerProbability();
      await listVersions();
    } catch {
      // The next answer shows it as well.
    }
  }

  /** Ctrl+Enter learns; a digit marks the label at that position, except in a text field. */
  function press(event) {
    if (lacking.learn || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      teach();
      return;
    }
    const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select");
    const one = isTyped || !/^[1-9]$/.test(event.key) ? undefined : answered?.labels[event.key - 1];
    if (one) chips.toggle(one.label);
  }

  /** Offer probabilities only for the index of a calibrating model. */
  function offerProbability() {
    const by = version.value || about.version;
    probability.hidden = !about.config.calibrate;
    probable.disabled = by !== "live";
    effect.textContent =
      by === "live"
        ? "Learned at once by all replicas; the next answers can change."
          : `Version ${by.slice(0, 8)} answers, and learning changes only the live index. Choose it under “Ranked by” to see the effect.`;
  }

  function asksProbability() {
    return !probability.hidden && !probable.disabled && probable.value !== "0";
  }

  function draw() {
    const { labels } = answered;
    if (labels.length === 0 && answered.isLimited) {
      fill(parts.ranks, empty("No label is as probable as that."));
      fill(parts.because, h("p", { class: "note" }, "Ask for less, and see what speaks for which label."));
      announce("No label is as probable as that.");
      return;
    }
    if (labels.length === 0) {
      fill(parts.ranks, empty("No label has any of these features.", lacking.learn ? null : "Name the right one, and press Learn."));
      fill(parts.because, h("p", { class: "note" }, "Nothing speaks for any label yet."));
      announce("No label found.");
      return;
    }
    const { activeElement } = document;
    const focused = parts.ranks.contains(activeElement) ? { of: [".right", ".wrong"].find((one) => activeElement.matches(one)) ?? ".rank", label: activeElement.dataset.label } : null;
    const whole = Math.max(...labels.map((one) => one.score), 1); // a bar is full at a score of 1 or more
    const explained = labels.find((one) => one.label === chosen) || labels[0];
    fill(
      parts.ranks,
      h("ol", { class: "ranks" }, labels.map((one, at) => {
        const filling = h("i", {});
        filling.style.width = `${100 * (one.probability ?? Math.max(0, one.score / whole))}%`;
        return h(
          "li",
          {},
          h(
            "button",
            { type: "button", class: "rank", "aria-pressed": String(one === explained), "data-label": one.label, onclick: () => { chosen = one.label; draw(); } },
            filling,
            h("span", { class: "place" }, `${at + 1}.`),
            h("span", { class: "named" }, h("span", { class: "name", title: legible(one.label) }, breakable(legible(one.label))), " ", moved(one.label, at), one.name ? h("span", { class: "hint called clamped" }, breakable(legible(one.name))) : null),
            h("span", { class: "score" }, one.probability === undefined ? null : [h("span", { class: "unseen" }, "probability "), h("b", { class: "probability" }, chance(one.probability)), h("span", { class: "unseen" }, ", score"), " "], score(one.score)),
          ),
          lacking.learn ? null : h("button", { type: "button", class: "small quiet right", "aria-label": `${legible(one.label)} is right`, "aria-pressed": String(chips.has(one.label)), "data-label": one.label, onclick: () => chips.toggle(one.label) }, "✓", h("span", { class: "word" }, " Right")),
          lacking.learn ? null : h("button", { type: "button", class: "small quiet wrong", title: "Not this", "aria-label": `${legible(one.label)} is not right`, "aria-pressed": String(rejected.has(one.label)), "data-label": one.label, onclick: () => reject(one.label) }, "✗"),
        );
      })),
      lacking.learn ? null : h("p", { class: "hint" }, "Mark the right labels, also with the keys 1 to 9, or wrong ones, then press Learn."),
      h("p", { class: "hint" }, labels[0].probability === undefined ? "A score is not a probability: turn on calibration under Models to get one." : "The percentage is the probability that a label is right; the score stands beside it."),
      h("p", { class: "hint" }, `By ${answered.version === "live" ? "the live index" : `version ${answered.version}`}, with all events up to `, term("offset"), ` ${answered.offset}.`),
    );
    if (focused) [...parts.ranks.querySelectorAll(focused.of)].find((one) => one.dataset.label === focused.label)?.focus();
    announce(`${counted(labels.length, "label")}; first ${legible(labels[0].label)}, ${labels[0].probability === undefined ? "" : `probability ${chance(labels[0].probability)}, `}score ${score(labels[0].score)}.`);
    explain(explained);
  }

  /** Return how a label has moved since the last learned instance. */
  function moved(name, at) {
    if (before === null) return null;
    const was = before.indexOf(name);
    if (was === at) return null;
    if (was < 0) return h("span", { class: "moved better" }, "new");
    return h("span", { class: `moved ${was > at ? "better" : "hint"}` }, was > at ? `up ${was - at}` : `down ${at - was}`);
  }

  function explain(one) {
    const because = one.because || [];
    if (because.length === 0) {
      fill(parts.because, h("p", { class: "note" }, "A version does not say which features speak for a label; rank by the live index to see what speaks there."));
      return;
    }
    const shown = because.slice(0, MOST_BARS);
    const rest = because.slice(MOST_BARS).reduce((sum, item) => sum + item.contribution, 0);
    const called = legible(one.label);
    const names = shown.map((item) => legible(item.feature));
    const values = shown.map((item) => item.contribution);
    if (because.length > MOST_BARS) {
      names.push(`${because.length - MOST_BARS} more`);
      values.push(rest);
    }
    fill(parts.because, h("p", {}, "For ", h("strong", { class: "break clamped", title: called }, breakable(called)), `: the parts sum to its score, ${score(one.score)}.`), chart.element);
    chart.set({
      names,
      series: [{ name: called, colour: "accent", values }],
      said: `For ${called}: ${names.map((name, at) => `${name} ${score(values[at])}`).join(", ")}.`,
      columns: ["feature", "#contribution"],
      rows: because.map((item) => [named(item.feature), score(item.contribution)]),
    });
  }

  /** Show which of the ranked labels are marked as right and as wrong. No label is both. */
  function mark() {
    for (const label of rejected) if (chips.has(label)) rejected.delete(label);
    for (const one of parts.ranks.querySelectorAll(".right")) one.setAttribute("aria-pressed", String(chips.has(one.dataset.label)));
    for (const one of parts.ranks.querySelectorAll(".wrong")) one.setAttribute("aria-pressed", String(rejected.has(one.dataset.label)));
  }

  function reject(label) {
    if (chips.has(label)) chips.toggle(label);
    if (!rejected.delete(label)) rejected.add(label);
    mark();
  }

  /** Disable the button, but keep it reachable by keyboard. */
  function hold(is) {
    teaching = is;
    learn.setAttribute("aria-disabled", String(is));
  }

  /** Learn the present instance with the marked labels. */
  async function teach() {
    if (teaching) return;
    const given = readable();
    const labels = chips.take();
    const wrong = [...rejected];
    if (given === null || labels.length + wrong.length === 0) {
      fill(parts.learned, h("p", { class: "worry" }, given === null ? "Type an instance first." : "Name the right label, or mark a wrong one."));
      return;
    }
    const body = { ...given, labels, source: "page" };
    if (wrong.length) body.rejected = wrong;
    if (weight.value !== "1") body.weight = Number(weight.value);
    const what = JSON.stringify(body);
    if (unsure?.what !== what) unsure = { what, key: newKey() };
    const { key } = unsure;
    const pressed = performance.now();
    hold(true);
    try {
      const answer = await post(`${modelPath(model)}/learn`, body, { signal, headers: { "Idempotency-Key": key } });
      unsure = null;
      before = answered ? answered.labels.map((one) => one.label) : [];
      taught.set(about.incarnation, answer.offset);
      about.learned += 1;
      chosen = labels[0] ?? null;
      rejected.clear();
      weight.value = "1";
      chips.clear();
      const said = [...labels.map((one) => `“${legible(one)}”`), ...wrong.map((one) => `not “${legible(one)}”`)].join(", ");
      const was = labels.length === 0 ? "" : answer.rank === null ? "It was not among the answers before." : `Its rank before was ${count(answer.rank)}.`;
      fill(
        parts.learned,
        h("p", { class: "better" }, "Learned ", breakable(said), `. ${answer.applied ? was : "It is in the log, and applied in a moment."}`),
        refused ? h("p", { class: "hint" }, "To undo this takes a key with the scope admin for all models.") : h("div", { class: "row" }, h("button", { type: "button", class: "small", onclick: () => undo(key, said) }, "Undo")),
      );
      await rank();
    } catch (error) {
      if (!signal.aborted) fill(parts.learned, problem(error));
    } finally {
      pastDoubleClick(pressed).then(() => hold(false));
    }
  }

  /** Forget the instance learned under an idempotency key. */
  async function undo(key, said) {
    fill(parts.learned, h("p", { class: "note" }, "A job takes it out of the index, the log and history…"));
    try {
      const { id } = await post("jobs", { model, method: "forget", params: { key, reason: "undone on the page" } }, { signal });
      await follow(`jobs/${part(id)}/events`, () => {}, signal);
      const job = await get(`jobs/${part(id)}`, { signal });
      const isDone = job.state === "succeeded";
      fill(parts.learned, h("p", { class: isDone ? "better" : "worry" }, isDone ? ["Forgotten: ", breakable(said), "."] : `Not undone: ${job.error ?? job.state}`));
      before = null;
      await rank();
    } catch (error) {
      if (!signal.aborted) fill(parts.learned, problem(error));
    }
  }

  async function listVersions() {
    try {
      const found = await get(`${modelPath(model)}/versions`, { signal });
      const versions = found.versions.map((one) => [one.id, `${one.method} ${one.id.slice(0, 8)}`]);
      const [, active] = versions.find(([id]) => id === about.version) ?? [null, about.version === "live" ? "live index" : about.version];
      const ways = [["", `active: ${active}`], ["live", "live index"]];
      ways.push(...versions);
      const chosenWay = version.value;
      fill(version, ways.map(([value, said]) => h("option", { value }, said)));
      version.value = ways.some(([value]) => value === chosenWay) ? chosenWay : "";
    } catch {
      // Without versions, the index is the only choice.
    }
  }
}

const NUMBER = /^-?(0|[1-9]\d*)?(\.\d+)?(e[+-]?\d+)?$/i;

/** Parse the value of a feature: 00100, or more digits than a number can hold, is a word. */
function valueOf(word) {
  if (word === "true" || word === "false") return word === "true";
  const number = Number(word);
  const isNumber = NUMBER.test(word) && Number.isFinite(number) && (!/^-?\d+$/.test(word) || Number.isSafeInteger(number));
  return isNumber ? number : word;
}

function readJson(given) {
  try {
    return JSON.parse(given);
  } catch (error) {
    throw new Error(`Not JSON yet: ${error.message}`);
  }
}

/** Parse features from lines `name: value`, or from a JSON object. */
export function readFeatures(given) {
  if (given.trim().startsWith("{")) return readJson(given);
  const found = new Map();
  for (const line of given.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const at = line.search(/[:=]/);
    const name = (at < 0 ? line : line.slice(0, at)).trim();
    const value = at < 0 ? "true" : line.slice(at + 1).trim();
    if (!name || !value) throw new Error(`“${line}” has no ${name ? "value" : "name"} yet.`);
    found.set(name, (found.get(name) ?? new Set()).add(value));
  }
  // Use fromEntries: an assignment to `__proto__` would not create a feature.
  return Object.fromEntries([...found].map(([name, words]) => [name, words.size > 1 ? [...words] : valueOf([...words][0])]));
}
