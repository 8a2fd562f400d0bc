// Several labels as chips: typed, chosen from suggestions, or marked elsewhere.

import { announce, confirmed, debounced, field, fill, h, newId } from "./dom.js";
import { legible } from "./format.js";
import { findLabels, labelMeant, labelled, LONGEST, spoken } from "./names.js";

const TYPED_MS = 150;
const SUGGESTED = 12;

/**
 * A field for labels: `element`, `has`, `toggle`, `clear`, and `take()`, which adds the typed text and returns all labels, or
 * null if a typed label was not meant. `chosen`: a map from label to whether it is new, which the caller may keep.
 */
export function labelChips(title, { model, signal, changed, chosen = new Map() }) {
  const options = h("ul", { class: "options", role: "listbox", id: newId("options"), "aria-label": "Known labels", hidden: true });
  const input = h("input", { role: "combobox", "aria-expanded": "false", "aria-controls": options.id, "aria-autocomplete": "list", autocomplete: "off", dir: "auto", placeholder: "Search names and labels" });
  const list = h("ul", { class: "chips", "aria-label": "Chosen" });
  let found = [];
  let at = -1; // of the option that the keys have reached
  let asked = 0;

  input.addEventListener("input", debounced(suggest, TYPED_MS));
  input.addEventListener("blur", () => offer([]));
  input.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.isComposing) return;
    if (["ArrowDown", "ArrowUp"].includes(event.key) && found.length) {
      event.preventDefault();
      reach((at + (event.key === "ArrowDown" ? 1 : found.length + (at < 0 ? 0 : -1))) % found.length);
    } else if (event.key === "Escape") offer([]);
    else if (input.value.trim() && (event.key === "Enter" || (event.key === "," && !/^\s*"[^"]*$/.test(input.value)))) {
      event.preventDefault();
      if (event.key === "Enter" && at >= 0) choose(found[at].label);
      else add();
    }
  });

  async function suggest() {
    const text = input.value.trim();
    const number = (asked += 1);
    try {
      const { rows } = text ? await findLabels(model, { contains: text.slice(0, LONGEST), limit: SUGGESTED, sort: "count" }, signal) : { rows: [] };
      if (number === asked && document.activeElement === input) offer(rows.filter((one) => !one.isRetired));
    } catch {
      // The field works without suggestions.
    }
  }

  function offer(rows) {
    const reached = found[at]?.label;
    found = rows;
    fill(options, rows.map((one) => h("li", { role: "option", id: newId("option"), onmousedown: (event) => { event.preventDefault(); choose(one.label); } }, labelled(model, one.label))));
    options.hidden = rows.length === 0;
    input.setAttribute("aria-expanded", String(rows.length > 0));
    reach(rows.findIndex((one) => one.label === reached)); // it stays reached when suggestions come late
    if (rows.length) announce(`${rows.length} known labels.`);
  }

  function reach(place) {
    at = place;
    [...options.children].forEach((one, n) => one.setAttribute("aria-selected", String(n === at)));
    options.children[at]?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", options.children[at]?.id ?? "");
  }

  function choose(label) {
    asked += 1;
    input.value = "";
    offer([]);
    chosen.set(label, false);
    draw();
  }

  /** Turn the typed text into chips; return whether all of it was meant. Commas separate labels, except in quotes. */
  async function add() {
    const typed = input.value.trim();
    asked += 1;
    input.value = "";
    offer([]);
    const whole = typed ? await labelMeant(model, typed, signal).catch((error) => { input.value = typed; throw error; }) : null;
    const parts = whole === null ? [...typed.matchAll(/"([^"]+)"|[^,]+/g)].map(([part, quoted]) => (quoted ?? part).trim()).filter(Boolean) : [whole];
    for (const part of parts) {
      const label = whole ?? (await labelMeant(model, part, signal));
      if (label === null && !(await isWanted(part))) {
        input.value = part;
        input.focus();
        suggest();
        return false;
      }
      chosen.set(label ?? part, label === null);
      draw();
    }
    return true;
  }

  /** Ask before a new label is made, if the model has registered labels. */
  async function isWanted(label) {
    const { isNamed } = await findLabels(model, { limit: 100 }, signal);
    return !isNamed || confirmed(`Make a new label “${legible(label)}”?`, "This model has registered labels, and none of them is called that.", "Make it");
  }

  function draw() {
    fill(list, [...chosen].map(([label, isNew]) => h("li", { class: isNew ? "chip new" : "chip" },
      h("span", { class: "clamped" }, labelled(model, label)),
      isNew ? h("span", { class: "tag" }, "new label") : null,
      h("button", { "aria-label": `Remove ${spoken(model, label)}`, onclick: () => { toggle(label); input.focus(); } }, "×"),
    )));
    list.hidden = chosen.size === 0;
    changed();
  }

  function toggle(label) {
    if (!chosen.delete(label)) chosen.set(label, false);
    draw();
  }

  const element = h("div", { class: "stack combobox" }, list, field(title, input, "Part of a name or label. Enter or a comma adds it; quote a label that has a comma."));
  input.after(options);
  list.hidden = true;
  return {
    element,
    draw,
    has: (label) => chosen.has(label),
    toggle,
    clear: () => { chosen.clear(); draw(); },
    take: async () => (!input.value.trim() || (await add()) ? [...chosen.keys()] : null),
  };
}
