// The instance that is typed under Try it. It is kept in this tab, whatever view or model is shown.

import { choice, field, h } from "./dom.js";

const KEPT = "abound.draft";
// The fields have no maximum length, which would silently cut pasted text: the service refuses what is too long.
const HOW = "One a line: name: value. A number is a value, a word means name=word, true is 1; what no number is written like (00100) is a word. On several lines of one name all values are words, true and numbers too. Or a JSON object.";

const draft = { kind: "text", text: "", features: "", vector: "", ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
const UNMARKED = { corrects: null, applied: null, none: false, partial: false };
const marks = new Map(); // by model: labels that are marked, rejected ones, the labels of the event that is corrected, and so on

/** Return what is marked for the draft in a model: `applied` by it, `none` if no label fits, `partial` if others may be right. */
export function marksOf(model) {
  if (!marks.has(model)) marks.set(model, { ...UNMARKED, chosen: new Map(), rejected: new Set() });
  return marks.get(model);
}

/** Make this instance the draft, with labels that were taught for it before. */
export function correct(model, { text, features, labels, partial = false }) {
  Object.assign(draft, text ? { kind: "text", text } : { kind: "features", features: JSON.stringify(features, null, 1) });
  keep();
  const chosen = new Map(labels.map((label) => [label, false]));
  marks.set(model, { ...UNMARKED, chosen, rejected: new Set(), corrects: labels, partial });
}

function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(draft));
  } catch {
    // A text that is too large for the storage is kept until the page is left.
  }
}

/** The field: `element`, and `read()`, which returns the instance, or null if it is empty, and throws an Error if it is wrong. */
export function instanceField({ takesVectors, wanted, typed, switched }) {
  if (wanted) Object.assign(draft, { kind: "text", text: wanted });
  if (draft.kind === "vector" && !takesVectors) draft.kind = "text";
  const area = (kind, props) => h("textarea", { rows: "5", spellcheck: "false", value: draft[kind], ...props, oninput: (event) => { draft[kind] = event.target.value; keep(); typed(); } });
  const fields = {
    text: field("Text", area("text", { dir: "auto", placeholder: "Type or paste something…" })),
    features: field("Features", area("features", { class: "mono", placeholder: "price: 3\ncountry: FI\nurgent: true" }), HOW),
    vector: field("Vector", area("vector", { class: "mono", placeholder: "0.1 -0.25 0.5" }), "Numbers with spaces or commas between them, such as an embedding."),
  };
  const titles = Object.entries({ text: "Text", features: "Features", ...(takesVectors ? { vector: "Vector" } : {}) });
  const show = () => Object.entries(fields).forEach(([kind, one]) => { one.hidden = kind !== draft.kind; });
  const use = (kind) => {
    draft.kind = kind;
    keep();
    show();
    switched();
  };
  show();
  return {
    element: h("div", { class: "stack" },
      choice("Kind of instance", titles, draft.kind, use),
      Object.values(fields),
    ),
    read() {
      const given = draft[draft.kind];
      if (!given.trim()) return null;
      return { [draft.kind]: { text: () => given, features: () => readFeatures(given), vector: () => readVector(given) }[draft.kind]() };
    },
  };
}

const NUMBER = /^-?(0|[1-9]\d*)?(\.\d+)?(e[+-]?\d+)?$/i;

/** Parse the value of a feature: 00100, or more digits than a number can hold, is a word. */
export function valueOf(word) {
  if (word === "true" || word === "false") return word === "true";
  const number = Number(word);
  const isNumber = NUMBER.test(word) && Number.isFinite(number) && (!/^-?\d+$/.test(word) || Number.isSafeInteger(number));
  return isNumber ? number : word;
}

function readVector(given) {
  const numbers = given.replace(/^\s*\[|\]\s*$/g, "").split(/[\s,;]+/).filter(Boolean).map(Number);
  const wrong = numbers.findIndex((one) => !Number.isFinite(one));
  if (wrong >= 0) throw new Error(`Number ${wrong + 1} of the vector is no number yet.`);
  return numbers;
}

/** Parse features from lines `name: value`, or from a JSON object. */
export function readFeatures(given) {
  if (given.trim().startsWith("{")) {
    try {
      return JSON.parse(given);
    } catch (error) {
      throw new Error(`Not JSON yet: ${error.message}`);
    }
  }
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
