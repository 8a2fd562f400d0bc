// The labels that a model knows: found, sorted, explained and changed.

import { announce, breakable, card, confirmed, debounced, empty, facts, field, fill, h, table } from "./dom.js";
import { ask, get, modelPath, newKey, part, post } from "./api.js";
import { count, counted, legible, percent, when } from "./format.js";
import { findLabels, findNames, keepNames, labelMeant, labelled, nameOf, spoken } from "./names.js";
import { weightBars } from "./why.js";

const PAGE = 50;
const MOST_IN_TREE = 5000;
const MOST_BARS = 20;
const SORTS = { first: "First seen", count: "Most learned", name: "Name", "R@1": "Lowest R@1" };
const REVERSE = { rename: ({ from, to }) => ({ kind: "rename", from: to, to: from }), retire: ({ from }) => ({ kind: "revive", from }), revive: ({ from }) => ({ kind: "retire", from }) };

export function show(root, { model, about, text: wanted, signal, problem, attempt, lacks }) {
  const search = h("input", { type: "search", maxlength: "512", autocomplete: "off", spellcheck: "false" });
  const sort = h("select", {}, Object.entries(SORTS).map(([value, said]) => h("option", { value }, said)));
  const parts = { found: h("div", { class: "stack" }), about: h("div", { class: "stack" }), said: h("div", { role: "status" }), changes: h("div", { class: "stack" }) };
  const lacking = { admin: lacks("admin", "To rename, merge or retire labels"), learn: lacks("learn", "To name labels") };
  let asked = 0;
  let shown = [];
  let total = 0;
  let chosen = null;

  fill(root,
    h("div", { class: "halves" },
      card("Labels", h("div", { class: "fields" }, field("Contains", search), field("Order", sort)), parts.found),
      card("About a label", parts.said, parts.about),
    ),
    card("Newest changes", parts.changes),
  );
  fill(parts.about, empty("No label chosen.", "Choose one of the list."));
  search.addEventListener("input", debounced(() => find(), 150));
  sort.addEventListener("change", () => find());
  find();
  listChanges();
  if (wanted) choose(wanted);

  async function find(isMore = false) {
    const number = (asked += 1);
    const begin = isMore ? shown.length : 0;
    const isTree = sort.value === "tree";
    try {
      const query = { contains: search.value, limit: isTree ? MOST_IN_TREE : PAGE, offset: begin, sort: isTree ? "first" : sort.value };
      const answer = await findLabels(model, query, signal);
      if (number !== asked) return;
      shown = isMore ? [...shown, ...answer.rows] : answer.rows;
      total = answer.total;
      if (shown.some((one) => one.parent) && !sort.querySelector("[value=tree]")) sort.append(h("option", { value: "tree" }, "Tree of parents"));
      if (isTree) shown = inTree(shown);
      draw(isMore ? begin : null);
    } catch (error) {
      if (number === asked && !signal.aborted) fill(parts.found, problem(error));
    }
  }

  function draw(first = null) {
    if (shown.length === 0) {
      fill(parts.found, search.value
        ? empty("No label has that in it.", "Neither labels nor names; capitals and accents do not count.")
        : empty("The live index knows no labels yet.", about.version === "live" ? "They come with what is learned, or are registered: abound register FILE." : "The version that answers has labels of its own."));
      announce("No label found.");
      return;
    }
    fill(parts.found,
      h("p", { class: "hint" }, counted(total, "label"), shown.length < total && sort.value === "tree" ? `; the tree has the first ${count(shown.length)}` : null),
      h("ul", { class: "ranks long", "aria-label": "Labels" }, shown.map((one) => {
        const item = h("li", {}, h("button",
          { class: "rank label", "aria-pressed": String(one.label === chosen), "data-label": one.label, onclick: () => choose(one.label) },
          h("span", { class: "named" }, labelled(model, one.label), one.isRetired ? h("span", { class: "tag bad" }, "retired") : null),
          h("span", { class: "score" }, `learned ${count(one.learned)}×`, one.recent === null ? null : `, R@1 ${percent(one.recent)}`),
        ));
        item.style.paddingInlineStart = `${1.25 * (one.depth ?? 0)}rem`;
        return item;
      })),
      shown.length < total && sort.value !== "tree" ? h("button", { onclick: () => find(true) }, "Show more") : null,
    );
    if (first !== null) parts.found.querySelectorAll(".label")[first]?.focus();
    else announce(`${counted(total, "label")}.`);
  }

  async function choose(label) {
    chosen = label;
    for (const one of parts.found.querySelectorAll(".label")) one.setAttribute("aria-pressed", String(one.dataset.label === label));
    try {
      const found = await get(`${modelPath(model)}/label?name=${part(label)}&limit=${MOST_BARS}`, { signal });
      keepNames(model, [{ label: found.label, name: found.details.name }]);
      await findNames(model, [...Object.keys(found.confused_with), found.details.parent].filter(Boolean), signal);
      if (chosen === label) explain(found);
    } catch (error) {
      if (chosen === label && !signal.aborted) fill(parts.about, problem(error));
    }
  }

  /** A label as a button that shows it. */
  const link = (label) => h("button", { class: "link break", onclick: () => choose(label) }, breakable(spoken(model, label)));

  function explain(found) {
    const { label, details, aliases, retired, recent, n_recent: n, confused_with: confused } = found;
    const { name, description, parent, metadata } = details;
    const known = [...Object.entries({
      label: name ? legible(label) : null,
      description,
      parent: parent && link(parent),
      "old names": aliases.map(legible).join(", "),
      "R@1": recent === null ? null : `${percent(recent)} of its newest ${counted(n, "time")}`,
      "confused with": Object.entries(confused).map(([other, times], at) => [at ? ", " : null, link(other), ` ${count(times)}×`]),
    }).filter(([, value]) => value && value.length !== 0), ...Object.entries(metadata ?? {}).map(([key, value]) => [legible(key), linked(typeof value === "string" ? value : JSON.stringify(value))])];
    const said = spoken(model, label);
    announce(`${said}: learned ${counted(found.learned, "time")}, ${counted(found.total, "feature")}.`);
    fill(parts.about,
      h("p", {}, h("strong", { class: "break clamped", dir: "auto", title: said }, breakable(legible(nameOf(model, label)))), retired ? [" ", h("span", { class: "tag bad" }, "retired")] : null, ` was learned ${counted(found.learned, "time")}. ${counted(found.total, "feature votes", "features vote")} on it.`),
      known.length ? facts(known.map(([fact, value]) => [fact, typeof value === "string" ? breakable(legible(value)) : value])) : null,
      naming(found),
      changing(found),
      found.features.length
        ? [h("p", { class: "hint" }, "What a feature adds to its score in an instance that has only this feature, with the value 1:"), weightBars(found.features.map((one) => [one.feature, one.weight]))]
        : empty("No feature points to it.", "Weak connections are dropped as others grow; it comes back when it is learned again."),
    );
  }

  /** The form for the details of a label. */
  function naming({ label, details }) {
    if (lacking.learn) return h("p", { class: "hint" }, lacking.learn);
    const inputs = { name: h("input", { maxlength: "512", dir: "auto", value: details.name ?? "" }), description: h("input", { maxlength: "4096", dir: "auto", value: details.description ?? "" }), parent: h("input", { maxlength: "512", value: details.parent ?? "" }) };
    const save = async (event) => {
      event.preventDefault();
      const given = Object.fromEntries(Object.entries(inputs).map(([key, input]) => [key, input.value.trim() || null]));
      await changed(async () => ask("PUT", `${modelPath(model)}/labels`, { body: { labels: [{ ...details, ...given, parent: given.parent && ((await labelMeant(model, given.parent, signal)) ?? given.parent), label }], source: "page" }, signal }), label, "The details are saved.");
    };
    return h("details", {}, h("summary", {}, "Name and parent"), h("form", { class: "stack", onsubmit: save }, field("Name", inputs.name, "It is learned once, so the label can be suggested without examples."), field("Description", inputs.description), field("Parent", inputs.parent, "A label; empty: none."), h("div", { class: "row" }, h("button", { type: "submit" }, "Save"))));
  }

  /** The forms that rename, merge and retire a label. */
  function changing({ label, learned, retired }) {
    if (lacking.admin) return h("p", { class: "hint" }, lacking.admin);
    const to = h("input", { required: true, maxlength: "512", dir: "auto" });
    const into = h("input", { required: true, maxlength: "512", dir: "auto" });
    const alone = retired ? ["revive", "Revive", "It is suggested and learned again."] : ["retire", "Retire", "It is never suggested again, and nothing is learned for it. It can be revived."];
    const form = (kind, said, input, title, text) => h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); change({ kind, from: label, to: input.value.trim() }, said, text(input.value.trim())); } }, h("div", { class: "grow" }, field(title, input)), h("button", { type: "submit", class: "last" }, said));
    return h("details", {}, h("summary", {}, "Rename, merge, retire"), h("div", { class: "stack" },
      form("rename", "Rename", to, "New label", (name) => `It becomes “${name}”. The old one stays as another name of it, and what was learned stays.`),
      form("merge", "Merge", into, "Merge into", (name) => `Everything learned for it (${counted(learned, "time")}) is added to “${name}”, and its name becomes another name of that. This cannot be undone in one step.`),
      h("div", { class: "row" }, h("button", { class: retired ? null : "danger", onclick: () => change({ kind: alone[0], from: label }, alone[1], alone[2]) }, alone[1]), h("span", { class: "hint" }, alone[2])),
    ));
  }

  async function change(given, word, text) {
    if (!(await confirmed(`${word} “${spoken(model, given.from)}”?`, text, word))) return;
    const body = { changes: [given] };
    await changed(() => post(`${modelPath(model)}/labels/changes`, body, { signal, headers: { "Idempotency-Key": newKey() } }), given.to ?? given.from, `Done: ${given.kind} ${spoken(model, given.from)}.`);
  }

  /** Make a change, and show the labels after it. */
  async function changed(work, label, said) {
    await attempt(parts.said, async () => {
      await work();
      fill(parts.said, h("p", { class: "better break" }, said));
      await Promise.all([find(), listChanges(), choose(label)]);
    });
  }

  async function listChanges() {
    await attempt(parts.changes, async () => {
      const { changes } = await get(`${modelPath(model)}/labels/changes`, { signal });
      await findNames(model, changes.slice(0, 20).flatMap((one) => [one.from, one.to ?? []].flat()), signal);
      fill(parts.changes, changes.length === 0 ? h("p", { class: "note" }, "No label was renamed, merged, retired or split yet.") : table(
        "Changes of labels, newest first",
        ["time", "change", "by", "undo", ""],
        changes.slice(0, 20).map((one) => [
          h("span", { class: "whole" }, when(one.time)),
          h("span", { class: "break" }, `${one.kind} ${spoken(model, one.from)}${one.to ? ` → ${[one.to].flat().map((name) => spoken(model, name)).join(", ")}` : ""}`),
          one.by ?? "–",
          h("span", { class: "break wide hint" }, REVERSE[one.kind] ? null : one.undo),
          REVERSE[one.kind] && !lacking.admin ? h("button", { class: "small last", "aria-label": `Undo ${one.kind} ${legible(one.from)}`, onclick: () => change(REVERSE[one.kind](one), "Undo", `${one.undo}.`) }, "Undo") : null,
        ]),
      ));
    });
  }
}

/** A value of a label's metadata; addresses of the web are links. */
const linked = (value) => (/^https?:\/\//.test(value) ? h("a", { href: value, rel: "noopener noreferrer", target: "_blank", class: "break" }, breakable(value)) : value);

/** Return labels in the order of their tree, each with its depth. Labels whose parent is not among them are roots. */
export function inTree(rows) {
  const known = new Set(rows.map((one) => one.label));
  const below = Map.groupBy(rows, (one) => (known.has(one.parent) ? one.parent : null));
  const found = [];
  const take = (parent, depth) => {
    for (const one of below.get(parent) ?? []) {
      found.push({ ...one, depth });
      take(one.label, depth + 1);
    }
  };
  take(null, 0);
  return found;
}
