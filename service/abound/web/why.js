// Why a label is ranked: the features that speak for it, as bars and in the text.

import { breakable, fill, h, named } from "./dom.js";
import { counted, legible, score } from "./format.js";
import { spoken } from "./names.js";

const MOST_BARS = 12;
const MOST_CHARACTERS = 3000;
const WORD = /[\p{L}\p{M}\p{N}]+/gu;

/** Bars: `[[feature, value]...]`, the longest as wide as there is room. */
export function weightBars(rows) {
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)));
  return h("ul", { class: "bars" }, rows.map(([feature, value]) => {
    const filling = h("i", { class: value < 0 ? "minus" : null });
    filling.style.width = `${(100 * Math.abs(value)) / most}%`;
    return h("li", {}, named(feature), h("span", { class: "track" }, filling), h("span", { class: "number" }, score(value)));
  }));
}

/** The text with the words marked that speak for or against a label; null if none of its words is a feature. */
function marked(text, because) {
  const worth = new Map(because.map((one) => [one.feature, one.contribution]));
  const shown = text.slice(0, MOST_CHARACTERS);
  const parts = [];
  let end = 0;
  for (const { 0: word, index } of shown.matchAll(WORD)) {
    const value = worth.get(word.toLowerCase());
    if (!value) continue;
    parts.push(shown.slice(end, index), h("mark", { class: value < 0 ? "minus" : null, title: score(value) }, word));
    end = index + word.length;
  }
  return parts.length ? h("p", { class: "marked break", dir: "auto" }, parts, shown.slice(end), text.length > MOST_CHARACTERS ? "…" : null) : null;
}

/** Show what speaks for a ranked label; `text`: that of the instance, if it has one. */
export function explain(element, model, one, text) {
  const because = one.because ?? [];
  if (because.length === 0) {
    fill(element, h("p", { class: "note" }, "Only the live index can explain its answers. Rank by it to see the features."));
    return;
  }
  const rest = because.slice(MOST_BARS);
  const sum = rest.reduce((total, item) => total + item.contribution, 0);
  fill(element,
    h("p", {}, "For ", h("strong", { class: "break clamped", title: spoken(model, one.label) }, breakable(spoken(model, one.label))), `: the parts sum to its score, ${score(one.score)}.`),
    typeof text === "string" ? marked(text, because) : null,
    weightBars(because.slice(0, MOST_BARS).map((item) => [item.feature, item.contribution])),
    rest.length
      ? h("details", {}, h("summary", {}, `${counted(rest.length, "more feature")}, together ${score(sum)}`), h("p", { class: "break figures" }, rest.map((item) => `${legible(item.feature)} ${score(item.contribution)}`).join(", ")))
      : null,
  );
}
