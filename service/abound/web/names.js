// Names of labels. Where a label has a name, the name comes first and the label beside it.

import { breakable, h } from "./dom.js";
import { get, modelPath } from "./api.js";
import { legible } from "./format.js";

export const LONGEST = 512; // characters that are searched for; learning says which labels are too long
const kept = new Map(); // by model: names by label, null for labels without one

const namesOf = (model) => kept.get(model) ?? kept.set(model, new Map()).get(model);

/** Keep the names of these labels: `[{label, name}]`. */
export function keepNames(model, labels) {
  for (const { label, name } of labels) namesOf(model).set(label, name ?? null);
}

export const nameOf = (model, label) => namesOf(model).get(label) || label;

/** A label as a text: `Wheat (c7)`. */
export function spoken(model, label) {
  const name = nameOf(model, label);
  return name === label ? legible(label) : `${legible(name)} (${legible(label)})`;
}

/** Labels as a text: `“Wheat (c7)”, “rye”`. */
export const spokenAll = (model, labels) => labels.map((label) => `“${spoken(model, label)}”`).join(", ");

/** A label as elements: its name, and the label itself if that is another word. */
export function labelled(model, label) {
  const name = nameOf(model, label);
  const id = name === label ? null : h("span", { class: "hint called clamped", dir: "auto" }, breakable(legible(label)));
  return [h("span", { class: "name", dir: "auto", title: legible(name) }, breakable(legible(name))), " ", id];
}

/** Return the labels that a search finds, and how many there are: `{rows: [{label, name, learned, recent, parent}], total}`. */
export async function findLabels(model, query, signal) {
  const found = await get(`${modelPath(model)}/labels?${new URLSearchParams(query)}`, { signal });
  const retired = new Set(found.retired);
  const rows = found.labels.map((label, at) => ({ label, learned: found.learned[at], recent: found.recent[at], isRetired: retired.has(label), ...found.details[label] }));
  keepNames(model, rows);
  return { rows, total: found.total, isNamed: Object.keys(found.details).length > 0 };
}

/** Look up the names of labels that are not known yet. */
export async function findNames(model, labels, signal) {
  const unknown = [...new Set(labels)].filter((label) => !namesOf(model).has(label));
  await Promise.all(unknown.map(async (label) => {
    await findLabels(model, { prefix: label, limit: 20 }, signal);
    if (!namesOf(model).has(label)) keepNames(model, [{ label }]);
  }));
}

/** Return the known label that a text means, by the label itself or by its name; null if there is none, or several. */
export async function labelMeant(model, text, signal) {
  const { rows } = await findLabels(model, { prefix: text.slice(0, LONGEST), limit: 1000 }, signal);
  const same = rows.filter((one) => one.label === text);
  const [one, other] = same.length ? same : rows.filter((one) => [one.label, one.name ?? ""].some((name) => folded(name) === folded(text)));
  return other ? null : (one?.label ?? null);
}

/** Return what labels are compared by: without case and accents. */
const folded = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
