// Try it: rank labels while an instance is typed, explain them, and correct them.

import { announce, card, debounced, empty, field, fill, h, term } from "./dom.js";
import { get, modelPath, part, post } from "./api.js";
import { chance, counted, score } from "./format.js";
import { instanceField, marksOf } from "./instance.js";
import { taught } from "./journal.js";
import { keepNames, labelled, spoken, spokenAll } from "./names.js";
import { snippets } from "./snippets.js";
import { teaching } from "./teach.js";
import { explain } from "./why.js";

const TYPED_MS = 150;
const FEW_EVENTS = 300; // probabilities are rough until then
const MOST_CANDIDATES = 8;

export function show(root, context) {
  const { model, about, text: wanted, signal, problem, lacks } = context;
  const k = h("select", {}, [5, 10, 20, 50].map((n) => h("option", { value: n, selected: n === 10 }, String(n))));
  const version = h("select", {}, h("option", { value: "" }, "active"), h("option", { value: "live" }, "live index"));
  const probable = h("select", {}, [0, 0.1, 0.25, 0.5, 0.75, 0.9].map((p) => h("option", { value: p }, p ? `${100 * p} %` : "any")));
  const probability = field("Least probability", probable);
  const parts = { ranks: h("div", { class: "stack" }), because: h("div", { class: "stack" }) };
  let chosen = null; // the label to explain: clicked or just learned; the first label while it is not among the ranked ones
  let [answered, before, asked] = [null, null, 0];

  const lacking = { classify: lacks("classify", "To see labels ranked"), learn: lacks("learn", "To teach it") };
  const typed = debounced(() => rank(), TYPED_MS);
  const instance = instanceField({
    takesVectors: about.config.update === "sls",
    wanted,
    typed() { before = null; correcting?.remove(); lesson.forget(); typed(); },
    switched() { lesson.forget(); rank(); },
  });
  const lesson = teaching(context, { read: readable, ranked: () => answered?.labels ?? [], changed: () => rankOthers(), place: parts.ranks, learned, undone: () => learned(null) });
  const correcting = marksOf(model).corrects && h("p", { class: "note" }, "A correction: labels that you remove are taught as wrong.");
  if (wanted) history.replaceState(null, "", `#try/${part(model)}`); // the text is the draft now: Back and a reload leave it alone
  fill(
    root,
    h(
      "div",
      { class: "trial" },
      card("An instance", instance.element),
      card(
        "Teach it",
        lacking.learn ? h("p", { class: "note" }, lacking.learn) : [correcting, lesson.element],
      ),
      card("Ranked labels", parts.ranks, h("details", {}, h("summary", {}, "Options"), h("div", { class: "fields" }, field("Labels at most", k), field("Ranked by", version), probability))),
      card("Why", parts.because),
    ),
  );

  for (const one of [k, version, probable]) one.addEventListener("change", () => rank());
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

  async function rank() {
    const number = (asked += 1);
    offerProbability();
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
      withoutLabels(about.learned || about.classes || about.version !== "live" ? empty("Nothing typed yet.", "Labels show here as you type.") : empty("This model has learned nothing yet.", lacking.learn ?? "Type something, name its label, and press Learn."));
      return;
    }
    /** @type {Record<string, any>} */
    const request = { ...given, k: Number(k.value), names: true, explain: ["", "live"].includes(version.value) };
    if (asksProbability()) request.min_probability = Number(probable.value);
    if (version.value) request.version = version.value;
    const least = taught.get(about.incarnation);
    if (least) request.min_offset = least;
    try {
      const path = `${modelPath(model)}/classify`;
      const answer = await post(path, request, { signal });
      const applied = answer.decision === "answer" ? answer.labels.map((one) => one.label) : [];
      if (applied.length) answer.labels = (await post(path, { ...request, decide: false, min_offset: answer.offset }, { signal })).labels; // such an answer has no other ones
      if (number !== asked) return; // a newer request was sent meanwhile
      if (!version.value && answer.version !== about.version) lookAgain();
      answered = { ...answer, applied, alone: answer.labels, known: [], request, sent: applied.length ? { ...request, decide: false } : request, isLimited: "min_probability" in request };
      keepNames(model, answer.labels);
      draw();
      if (before === null) lesson.apply(applied);
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
    const { min_probability, ...request } = shown.request;
    shown.known = known;
    shown.sent = known.length ? { ...request, known, decide: false } : shown.request;
    try {
      const { labels } = known.length ? await post(`${modelPath(model)}/classify`, shown.sent, { signal }) : { labels: [] };
      if (shown !== answered || shown.known !== known) return;
      const matters = labels.some((one) => one.because?.some(({ feature }) => feature === "(known)"));
      shown.labels = matters ? [...shown.alone.filter((one) => lesson.isRight(one.label)), ...labels] : shown.alone;
      keepNames(model, labels);
      draw();
    } catch (error) {
      if (!signal.aborted) fill(parts.ranks, problem(error));
    }
  }

  function estimates() {
    return about.config.calibrate || about.config.decide !== null;
  }

  /** Reload the model: another version is active. */
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
      lesson.teach();
      return;
    }
    const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select");
    const one = isTyped || !/^[1-9]$/.test(event.key) ? undefined : answered?.labels[event.key - 1];
    if (one) lesson.toggle(one.label);
  }

  /** Offer probabilities only for the index of a calibrating model. */
  function offerProbability() {
    const by = version.value || about.version;
    probability.hidden = !estimates();
    probable.disabled = by !== "live";
    lesson.tell(
      by === "live"
        ? "Learned at once by all replicas; the next answers can change."
        : `Version ${by.slice(0, 8)} answers, and learning changes only the live index. Choose it under “Ranked by” to see the effect.`,
    );
  }

  function asksProbability() {
    return !probability.hidden && !probable.disabled && probable.value !== "0";
  }

  function draw() {
    const { labels, request } = answered;
    const sent = snippets(`${modelPath(model)}/classify`, answered.sent);
    if (labels.length === 0) {
      const [title, next, why] = answered.isLimited
        ? ["No label is as probable as that.", null, "Ask for less, and see what speaks for which label."]
        : ["No label has any of these features.", lacking.learn ? null : "Name the right one, and press Learn.", "Nothing speaks for any label yet."];
      fill(parts.ranks, decided(), empty(title, next), sent);
      fill(parts.because, h("p", { class: "note" }, why));
      announce("No label found.");
      return;
    }
    const { activeElement } = /** @type {any} */ (document);
    const focused = parts.ranks.contains(activeElement) ? { of: [".right", ".wrong"].find((one) => activeElement.matches(one)) ?? ".rank", label: activeElement.dataset.label } : null;
    const whole = Math.max(...labels.map((one) => one.score), 1); // a bar is full at a score of 1 or more
    const explained = labels.find((one) => one.label === chosen) || labels[0];
    const isProbable = labels[0].probability !== undefined;
    fill(
      parts.ranks,
      decided(),
      h("ol", { class: "ranks" }, labels.map((one, at) => {
        const [name, , id] = labelled(model, one.label);
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
            h("span", { class: "named" }, name, " ", moved(one.label, at), id),
            h("span", { class: "score" }, one.probability !== undefined ? [h("span", { class: "unseen" }, "probability "), h("b", { class: "probability" }, chance(one.probability)), h("span", { class: "unseen" }, ", score"), " "] : null, score(one.score)),
          ),
          lacking.learn ? null : h("button", { type: "button", class: "small quiet right", "aria-label": `${spoken(model, one.label)} is right`, "aria-pressed": String(lesson.isRight(one.label)), "data-label": one.label, onclick: () => lesson.toggle(one.label) }, "✓", h("span", { class: "word" }, " Right")),
          lacking.learn ? null : h("button", { type: "button", class: "small quiet wrong", title: "Not this", "aria-label": `${spoken(model, one.label)} is not right`, "aria-pressed": String(lesson.isWrong(one.label)), "data-label": one.label, onclick: () => lesson.reject(one.label) }, "✗"),
        );
      })),
      lacking.learn ? null : h("p", { class: "hint" }, "Mark the right labels, also with the keys 1 to 9, or wrong ones, then press Learn."),
      h("p", { class: "hint" }, meaning(isProbable)),
      h("p", { class: "hint" }, `By ${answered.version === "live" ? "the live index" : `version ${answered.version}`}, with all events up to `, term("offset"), ` ${answered.offset}.`),
      sent,
    );
    if (focused) [...parts.ranks.querySelectorAll(focused.of)].find((one) => one.dataset.label === focused.label)?.focus();
    announce(`${counted(labels.length, "label")}; first ${spoken(model, labels[0].label)}, ${isProbable ? `probability ${chance(labels[0].probability)}, ` : ""}score ${score(labels[0].score)}.`);
    explain(parts.because, model, explained, request.text);
  }

  /** Say what a model with `decide` has decided. */
  function decided() {
    const { decision, audit, applied, candidates = [], reachable = true } = answered;
    if (!decision) return null;
    const [title, said] = {
      answer: ["Answer", `${spokenAll(model, applied)} may be applied without a person.`],
      defer: ["Ask a person", candidates.length ? `the right label is probably one of ${spokenAll(model, candidates.slice(0, MOST_CANDIDATES))}${candidates.length > MOST_CANDIDATES ? ` and ${candidates.length - MOST_CANDIDATES} more` : ""}.` : "the model is not sure enough."],
      none: ["None of the labels", "no label fits, or one that the model does not know."],
    }[decision];
    return h("p", { class: "decision break" }, h("strong", {}, title), `: ${said}`, reachable ? null : " Even the best 50 labels have a right one less often than the model aims at.", audit ? " This one belongs to the audited share: teach its true label, too." : null);
  }

  /** Say what the figures beside labels are. */
  function meaning(isProbable) {
    if (isProbable) {
      const rough = about.learned < FEW_EVENTS ? ` It is rough: it rests on ${counted(about.learned, "event")}.` : "";
      const given = answered.labels === answered.alone ? "" : " Labels without one are ranked given those that you marked.";
      return `The percentage is the probability that a label is right; the score stands beside it.${rough}${given}`;
    }
    if (!estimates()) return "A score is not a probability: turn on calibration under Models to get one.";
    return answered.version === "live" ? "A score is not a probability." : "Only the live index has probabilities: choose it under “Ranked by”.";
  }

  /** Return how a label has moved since the last learned instance. */
  function moved(name, at) {
    if (before === null) return null;
    const was = before.indexOf(name);
    if (was === at) return null;
    if (was < 0) return h("span", { class: "moved better" }, "new");
    return h("span", { class: `moved ${was > at ? "better" : "hint"}` }, was > at ? `up ${was - at}` : `down ${at - was}`);
  }

  async function listVersions() {
    try {
      const found = await get(`${modelPath(model)}/versions`, { signal });
      const versions = found.versions.map((one) => [one.id, `${one.method} ${one.id.slice(0, 8)}`]);
      const [, active] = versions.find(([id]) => id === about.version) ?? [null, about.version === "live" ? "live index" : about.version];
      const ways = [["", `active: ${active}`], ["live", "live index"], ...versions];
      const chosenWay = version.value;
      fill(version, ways.map(([value, said]) => h("option", { value }, said)));
      version.value = ways.some(([value]) => value === chosenWay) ? chosenWay : "";
    } catch {
      // Without versions, the index is the only choice.
    }
  }
}
