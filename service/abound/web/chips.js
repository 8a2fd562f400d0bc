// Several labels as chips: typed, chosen from suggestions, or marked elsewhere.

import { breakable, debounced, field, fill, h, newId } from "./dom.js";
import { legible } from "./format.js";

const TYPED_MS = 150;

/**
 * A field for labels: `element`, `has`, `toggle`, `clear`, and `take()`, which adds the typed text and returns all labels.
 * `suggest` returns known labels by prefix; `changed` is called after every change.
 */
export function labelChips(title, { suggest, changed }) {
  const known = h("datalist", { id: newId("known") });
  const input = h("input", { list: known.id, autocomplete: "off", placeholder: "grain, wheat" });
  const list = h("ul", { class: "chips", "aria-label": "Chosen" });
  const chosen = new Set();
  const suggested = new Set();

  input.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.isComposing || !input.value.trim()) return;
    if (event.key !== "Enter" && (event.key !== "," || /^\s*"[^"]*$/.test(input.value))) return;
    event.preventDefault();
    add();
  });
  input.addEventListener("input", debounced(async () => {
    if (!input.value.trim()) { // taken in the meantime, or deleted
      fill(known);
      return;
    }
    try {
      const { labels } = await suggest(input.value);
      for (const label of labels) suggested.add(label);
      fill(known, labels.map((label) => h("option", { value: label })));
    } catch {
      // The field works without suggestions.
    }
  }, TYPED_MS));

  /** Turn the typed text into chips. Commas separate labels, except in quotes and in known labels. */
  function add() {
    const typed = input.value.trim();
    const found = suggested.has(typed) ? [typed] : [...typed.matchAll(/"([^"]+)"|[^,]+/g)].map(([whole, quoted]) => (quoted ?? whole).trim());
    for (const label of found.filter(Boolean)) chosen.add(label);
    input.value = "";
    draw();
  }

  function draw() {
    fill(list, [...chosen].map((label) => h(
      "li",
      { class: "chip" },
      h("span", { class: "clamped", title: legible(label) }, breakable(legible(label))),
      h("button", { type: "button", "aria-label": `Remove ${legible(label)}`, onclick: () => { toggle(label); input.focus(); } }, "×"),
    )));
    list.hidden = chosen.size === 0;
    changed();
  }

  function toggle(label) {
    if (!chosen.delete(label)) chosen.add(label);
    draw();
  }

  list.hidden = true;
  return {
    element: h("div", { class: "stack" }, list, field(title, input, "Enter or a comma adds a label; quote a label that has a comma."), known),
    has: (label) => chosen.has(label),
    toggle,
    clear() {
      chosen.clear();
      draw();
    },
    take() {
      if (input.value.trim()) add();
      return [...chosen];
    },
  };
}
