// Try it: rank labels while an instance is typed, explain them, and correct them.

import { announce, card, debounced, empty, field, fill, h, refill } from "./dom.js";
import { isCalibrated, rankedAnswer } from "./answer.js";
import { get, modelPath, part, post } from "./api.js";
import { chance, counted, score } from "./format.js";
import { instanceField, marksOf } from "./instance.js";
import { taught } from "./journal.js";
import { keepNames, spoken } from "./names.js";
import { snippets } from "./snippets.js";
import { teaching } from "./teach.js";
import { explain } from "./why.js";

const TYPED_MS = 150;

export function show(root, context) {
  const { model, about, text: wanted, signal, problem, lacks } = context;
  const path = `${modelPath(model)}/classify`;
  const parts = { ranks: h("div", { class: "stack" }), because: h("div", { class: "stack" }) };
  const lacking = { classify: lacks("classify", "To see labels ranked"), learn: lacks("learn", "To teach it") };
  let chosen = null; // the label to explain: clicked or just learned; the first label while it is not among the ranked ones
  let [answered, before, asked] = [null, null, 0];
  const options = rankingOptions(about, () => rank());
  const typed = debounced(() => rank(), TYPED_MS);
  const instance = instanceField({
    takesVectors: about.config.update === "sls",
    wanted,
    typed() { before = null; correcting?.remove(); lesson.forget(); typed(); },
    switched() { lesson.forget(); rank(); },
  });
  const lesson = teaching(context, {
    read: readable,
    ranked: () => answered?.labels ?? [],
    place: parts.ranks,
    changed: () => rankOthers(),
    learned,
    undone: () => learned(null),
  });
  const correction = "A correction: labels that you remove are taught as wrong.";
  const correcting = marksOf(model).corrects && h("p", { class: "note" }, correction);
  if (wanted) history.replaceState(null, "", `#try/${part(model)}`); // it is the draft now: Back and a reload leave it alone
  fill(root, h("div", { class: "trial" },
    card("An instance", instance.element),
    card("Teach it", lacking.learn ? h("p", { class: "note" }, lacking.learn) : [correcting, lesson.element]),
    card("Ranked labels", parts.ranks, options.element),
    card("Why", parts.because),
  ));
  document.addEventListener("keydown", press, { signal });
  listVersions();
  rank();

  /** Return the present instance, or null if it is empty or invalid: the error is already shown beside the labels. */
  function readable() {
    try {
      return instance.read();
    } catch {
      return null;
    }
  }

  /** Show the answers after an event was learned or undone. */
  function learned(label) {
    before = label !== null && answered ? answered.alone.map((one) => one.label) : null;
    chosen = label;
    return rank();
  }

  /** Show this in place of labels. */
  function withoutLabels(...said) {
    answered = null;
    fill(parts.ranks, ...said);
    fill(parts.because, h("p", { class: "note" }, "Choose a label, and see which features speak for it."));
  }

  function nothingTyped() {
    const isNew = !about.learned && !about.classes && about.version === "live";
    if (!isNew) return empty("Nothing typed yet.", "Labels show here as you type.");
    return empty("This model has learned nothing yet.", lacking.learn ?? "Type something, name its label, and press Learn.");
  }

  async function rank() {
    const number = (asked += 1);
    const ranking = options.read();
    lesson.tell(effectOf(options.by()));
    if (lacking.classify) {
      withoutLabels(h("p", { class: "note" }, lacking.classify));
      return;
    }
    let given;
    try {
      given = instance.read();
    } catch (error) {
      withoutLabels(h("p", { class: "worry" }, error.message));
      return;
    }
    if (given === null) {
      withoutLabels(nothingTyped());
      return;
    }
    /** @type {Record<string, any>} */
    const request = { ...given, ...ranking, names: true };
    const least = taught.get(about.incarnation);
    if (least) request.min_offset = least;
    try {
      const answer = await labelsFor(path, request, signal);
      if (number !== asked) return; // a newer request was sent meanwhile
      if (!request.version && answer.version !== about.version) lookAgain();
      answered = answer;
      keepNames(model, answer.labels);
      draw();
      if (before === null) lesson.apply(answer.applied);
      lesson.warn();
      await rankOthers();
    } catch (error) {
      if (number === asked && !signal.aborted) withoutLabels(problem(error));
    }
  }

  /** Rank the other labels given those that are marked as right, if that makes a difference. */
  async function rankOthers() {
    if (!about.config.known || answered?.version !== "live") return;
    const known = lesson.right();
    if (String(known) === String(answered.known)) return;
    const shown = answered;
    const { min_probability: _, ...request } = shown.request;
    shown.known = known;
    shown.sent = known.length ? { ...request, known, decide: false } : shown.request;
    try {
      const { labels } = known.length ? await post(path, shown.sent, { signal }) : { labels: [] };
      if (shown !== answered || shown.known !== known) return;
      shown.isGiven = labels.some((one) => one.because?.some(({ feature }) => feature === "(known)"));
      shown.labels = shown.isGiven ? [...shown.alone.filter((one) => lesson.isRight(one.label)), ...labels] : shown.alone;
      keepNames(model, labels);
      draw();
    } catch (error) {
      if (!signal.aborted) fill(parts.ranks, problem(error));
    }
  }

  /** Reload the model: another version is active. */
  async function lookAgain() {
    try {
      Object.assign(about, await get(modelPath(model), { signal }));
      options.read();
      lesson.tell(effectOf(options.by()));
      await listVersions();
    } catch {
      // The next answer shows it as well.
    }
  }

  async function listVersions() {
    try {
      options.offer((await get(`${modelPath(model)}/versions`, { signal })).versions);
    } catch {
      // Without versions, the index is the only choice.
    }
  }

  /** Ctrl+Enter learns; a digit marks the label at that position, except in a text field. */
  function press(event) {
    if (lacking.learn || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      lesson.teach();
      return;
    }
    const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select");
    const one = isTyped || !/^[1-9]$/.test(event.key) ? undefined : answered?.labels[event.key - 1];
    if (one) lesson.toggle(one.label);
  }

  function draw() {
    const { labels, request, sent, isLimited } = answered;
    const explained = labels.find((one) => one.label === chosen) ?? labels[0];
    const marks = lacking.learn ? null : lesson;
    const choose = (label) => { chosen = label; draw(); };
    refill(parts.ranks, rankedAnswer({ model, about, answer: answered, marks, choose, explained, before }), snippets(path, sent));
    announce(explained ? `${counted(labels.length, "label")}; first ${heard(model, labels[0])}.` : "No label found.");
    if (explained) explain(parts.because, model, explained, request.text);
    else {
      const why = isLimited ? "Ask for less, and see what speaks for which label." : "Nothing speaks for any label yet.";
      fill(parts.because, h("p", { class: "note" }, why));
    }
  }
}

/** The first label as it is heard. */
const heard = (model, { label, probability: p, score: value }) =>
  `${spoken(model, label)}, ${p === undefined ? "" : `probability ${chance(p)}, `}score ${score(value)}`;

/** Ask for labels. An answer that may be applied has no other labels than these, so all labels are asked for as well. */
async function labelsFor(path, request, signal) {
  const answer = await post(path, request, { signal });
  const applied = answer.decision === "answer" ? answer.labels.map((one) => one.label) : [];
  const sent = applied.length ? { ...request, decide: false } : request;
  if (applied.length) answer.labels = (await post(path, { ...sent, min_offset: answer.offset }, { signal })).labels;
  const isLimited = "min_probability" in request;
  return { ...answer, applied, alone: answer.labels, known: [], isGiven: false, request, sent, isLimited };
}

/** Say what learning changes while a version answers. */
function effectOf(version) {
  if (version === "live") return "Learned at once by all replicas; the next answers can change.";
  return `Version ${version.slice(0, 8)} answers, and learning changes only the live index. \
Choose it under “Ranked by” to see the effect.`;
}

/**
 * How labels are ranked: `element`; `read()`, this part of a request; `by()`, the version that ranks; and `offer(versions)`.
 * Only the index of a model that calibrates has probabilities.
 */
function rankingOptions(about, changed) {
  const select = (options) => h("select", { onchange: changed }, options.map(([value, said]) => h("option", { value }, said)));
  const k = select([5, 10, 20, 50].map((n) => [n, String(n)]));
  k.value = "10";
  const version = select([["", "active"], ["live", "live index"]]);
  const least = select([0, 0.1, 0.25, 0.5, 0.75, 0.9].map((p) => [p, p ? `${100 * p} %` : "any"]));
  const probability = field("Least probability", least);
  const fields = h("div", { class: "fields" }, field("Labels at most", k), field("Ranked by", version), probability);
  const by = () => version.value || about.version;
  return {
    element: h("details", {}, h("summary", {}, "Options"), fields),
    by,
    read() {
      probability.hidden = !isCalibrated(about);
      least.disabled = by() !== "live";
      const isLimited = isCalibrated(about) && !least.disabled && least.value !== "0";
      return {
        k: Number(k.value),
        explain: ["", "live"].includes(version.value),
        ...(isLimited ? { min_probability: Number(least.value) } : {}),
        ...(version.value ? { version: version.value } : {}),
      };
    },
    offer(found) {
      const versions = found.map((one) => [one.id, `${one.method} ${one.id.slice(0, 8)}`]);
      const ways = [["live", "live index"], ...versions];
      const [, active] = ways.find(([id]) => id === about.version) ?? [null, about.version];
      ways.unshift(["", `active: ${active}`]);
      const { value } = version;
      fill(version, ways.map(([way, said]) => h("option", { value: way }, said)));
      version.value = ways.some(([way]) => way === value) ? value : "";
    },
  };
}
