// Teach an instance its labels: the form, what was learned, and undo.

import { breakable, field, fill, h, newId, single } from "./dom.js";
import { modelPath, newKey, part, post } from "./api.js";
import { labelChips } from "./chips.js";
import { chance, count } from "./format.js";
import { marksOf } from "./instance.js";
import { record, undo } from "./journal.js";
import { spoken, spokenAll } from "./names.js";
import { snippets } from "./snippets.js";

const LIKELY = 0.5;

/** A checkbox with its label: `box`, and both as `element`. */
function checkbox(words, isOn, onchange) {
  const box = h("input", { type: "checkbox", id: newId("check"), checked: Boolean(isOn), onchange });
  return { box, element: h("div", { class: "field check" }, box, h("label", { for: box.id }, words)) };
}

/**
 * The form: `element`, `bar` with the button, and what ranked labels are marked with. `read` returns the instance or null,
 * `ranked` the labels shown in `place`; `changed` is called when other labels are marked, `learned` and `undone` after that;
 * `kept` returns what else this tab keeps of the instance.
 */
export function teaching({ model, about, signal, attempt }, { marks = marksOf(model), ...given }) {
  const { read, ranked, place, changed = () => {}, learned, undone, kept = () => ({}) } = given;
  const chips = labelChips("Right labels", { model, signal, chosen: marks.chosen, changed: mark });
  const weight = h("select", {}, [0.1, 0.5, 1, 2, 5, 10].map((w) => h("option", { value: w, selected: w === 1 }, String(w))));
  const none = checkbox("None of the labels fits", marks.none, () => {
    marks.none = none.box.checked;
    marks.rejected.clear();
    chips.clear();
  });
  const partial = checkbox("Only these are sure", marks.partial, () => { marks.partial = partial.box.checked; warn(); });
  const unmarked = h("div", { class: "row hint" });
  const effect = h("p", { class: "hint" });
  const said = h("div", { class: "stack", role: "status" });
  const button = h("button", { type: "submit", class: "primary" }, "Learn");
  const keys = h("span", { class: "hint keys" }, "or Ctrl+Enter");
  const bar = h("div", { class: "learnbar" }, unmarked, partial.element, h("div", { class: "row" }, button, keys), said);
  const teach = single(learn, button);
  let unsure = null; // a request without an answer, and its idempotency key: a retry is learned once
  const fields = [chips.element, about.config.decide ? none.element : null, bar, effect, field("Weight", weight)];
  const element = h("form", { class: "stack", onsubmit: teach }, fields);

  /** No label is both right and wrong. */
  function mark() {
    for (const label of marks.rejected) if (chips.has(label)) marks.rejected.delete(label);
    if (marks.chosen.size + marks.rejected.size > 0) marks.none = none.box.checked = false;
    warn();
    paint();
    changed();
  }

  /** Show which of the ranked labels are marked as right and as wrong. */
  function paint() {
    for (const one of place.querySelectorAll(".right")) one.setAttribute("aria-pressed", String(chips.has(one.dataset.label)));
    for (const one of place.querySelectorAll(".wrong")) one.setAttribute("aria-pressed", String(marks.rejected.has(one.dataset.label)));
  }

  /** Say what labels that are not marked count as; name the likely ones that would be taught as wrong. */
  function warn() {
    const isMarked = marks.chosen.size > 0;
    const unsaid = ranked().filter(({ label }) => !chips.has(label) && !marks.rejected.has(label));
    const likely = isMarked && !marks.partial ? unsaid.filter((one) => (one.probability ?? one.score) >= LIKELY) : [];
    const named = ({ label, probability: p }) => `${spoken(model, label)}${typeof p === "number" ? ` (${chance(p)})` : ""}`;
    const counts = marks.partial ? "The others count neither as right nor as wrong." : "Labels that are not marked count as wrong.";
    const wrong = ["Not marked, so taught as wrong: ", h("strong", { class: "break" }, likely.map(named).join(", ")), "."];
    const add = () => likely.forEach((one) => chips.toggle(one.label));
    partial.element.hidden = !isMarked || (about.config.update !== "sls" && !marks.partial);
    fill(unmarked,
      isMarked && h("span", {}, likely.length ? wrong : counts),
      likely.length > 0 && h("button", { class: "small", onclick: add }, "They are right, too"),
    );
  }

  /** Mark the labels that the model would apply, unless the marks are no longer those that it made. */
  function apply(labels) {
    if (marks.none || marks.corrects || marks.rejected.size || String([...marks.chosen.keys()]) !== String(marks.applied ?? [])) return;
    marks.applied = labels;
    marks.chosen.clear();
    for (const label of labels) marks.chosen.set(label, false);
    chips.draw();
  }

  function reject(label) {
    if (chips.has(label)) chips.toggle(label);
    if (!marks.rejected.delete(label)) marks.rejected.add(label);
    mark();
  }

  /** Learn the present instance with the marked labels. */
  function learn() {
    return attempt(said, async () => {
      const given = read();
      const labels = given === null ? [] : await chips.take();
      if (labels === null) return;
      const wrong = marks.none ? [] : [...new Set([...marks.rejected, ...(marks.corrects ?? []).filter((label) => !labels.includes(label))])];
      if (given === null || (labels.length + wrong.length === 0 && !marks.none)) {
        fill(said, h("p", { class: "worry" }, given === null ? "Type an instance first." : "Name the right label, or mark a wrong one."));
        return;
      }
      const body = { ...given, labels, source: "page" };
      if (wrong.length) body.rejected = wrong;
      if (marks.none) body.none = true;
      if (marks.partial && labels.length) body.partial = true;
      if (weight.value !== "1") body.weight = Number(weight.value);
      const what = JSON.stringify(body);
      if (unsure?.what !== what) unsure = { what, key: newKey() };
      const { key } = unsure;
      const answer = await post(`${modelPath(model)}/learn`, body, { signal, headers: { "Idempotency-Key": key } });
      unsure = null;
      record({ model, incarnation: about.incarnation, offset: answer.offset, rank: answer.rank, time: Date.now() / 1000, labels, rejected: wrong, source: "page", ...given, ...kept() });
      about.learned += 1;
      const words = [spokenAll(model, labels), ...wrong.map((one) => `not “${spoken(model, one)}”`), marks.none ? "that no label fits" : ""].filter(Boolean).join(", ");
      clear();
      confirm(answer, body, words);
      await learned(labels[0] ?? null);
    });
  }

  function confirm({ rank, applied, offset }, body, words) {
    const { labels } = body;
    const [best, was] = labels.length > 1 ? ["The best of them", "They were"] : ["It", "It was"];
    const before = labels.length === 0 ? "" : rank === null ? `${was} not among the answers before.` : `${best} was ranked ${rank === 1 ? "first" : `number ${count(rank)}`} before.`;
    const again = h("a", { href: `#events/${part(model)}` }, "Correct it under Events");
    fill(said,
      h("p", { class: "better" }, "Learned ", breakable(words), `. ${applied ? before : "It is in the log, and applied in a moment."}`),
      h("div", { class: "row" }, h("button", { class: "small", onclick: () => takeBack(offset, words) }, "Undo"), h("span", { class: "hint" }, again)),
      snippets(`${modelPath(model)}/learn`, body, "Learn request"),
    );
  }

  async function takeBack(offset, words) {
    const note = h("p", { class: "note" }, "A job takes it out of the index, the log and history…");
    fill(said, note);
    await attempt(said, async () => {
      const failed = await undo(model, offset, { signal, told: (text) => { note.textContent = `Undoing: ${text}`; } });
      fill(said, h("p", { class: failed ? "worry" : "better" }, failed ? `Not undone: ${failed}` : ["Forgotten: ", breakable(words), "."]));
      if (!failed) await undone();
    });
  }

  function clear() {
    marks.rejected.clear();
    marks.corrects = marks.applied = null;
    marks.none = none.box.checked = marks.partial = partial.box.checked = false;
    weight.value = "1";
    chips.clear();
  }

  chips.draw();
  return {
    element,
    teach,
    reject,
    apply,
    warn,
    paint,
    toggle: chips.toggle,
    clear,
    right: () => [...marks.chosen.keys()],
    isRight: chips.has,
    isWrong: (label) => marks.rejected.has(label),
    /** The instance is another one: wrong labels, or none, were meant for the former. */
    forget() {
      marks.rejected.clear();
      marks.corrects = null;
      marks.none = none.box.checked = marks.partial = partial.box.checked = false;
      warn();
    },
    tell: (text) => { effect.textContent = text; },
  };
}
