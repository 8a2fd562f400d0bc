// Events: what a model was taught, the newest or the most suspicious first; corrected and undone.

import { announce, breakable, card, choice, confirmed, debounced, empty, field, fill, h, refill, table } from "./dom.js";
import { ask, get, modelPath, part } from "./api.js";
import { chance, count, legible, when } from "./format.js";
import { correct } from "./instance.js";
import { recorded, undo } from "./journal.js";
import { findNames, labelMeant, spoken } from "./names.js";

const PAGE = 50;
const MOST_DOUBTS = 200; // suspicious events, whose sources are counted
const MOST_FEATURES = 30;

const NO_DOUBT = "A model with calibrate or decide lists events whose label it held improbable, and another one probable, \
before it learned them.";

export function show(root, { model, signal, attempt, lacks }) {
  const label = h("input", { type: "search", maxlength: "512", autocomplete: "off" });
  const source = h("input", { type: "search", maxlength: "200", autocomplete: "off" });
  const parts = { said: h("div", { role: "status" }), list: h("div", { class: "stack" }) };
  const lacking = lacks("learn", "To see what was taught");
  let shown = [];
  let total = 0; // suspicious events
  let doubts = false; // whether suspicious events are listed
  const kind = choice("Which events", [[false, "Newest"], [true, "Suspicious"]], doubts, (asked) => {
    doubts = label.disabled = asked;
    list();
  });
  const filters = [field("Label", label, "A label or its name, right or rejected."), field("Source", source, "Such as page.")];
  fill(root, card("What the model was taught",
    lacking ? h("p", { class: "note" }, lacking) : [kind, h("div", { class: "fields" }, filters)],
    parts.said,
    parts.list,
  ));
  for (const one of [label, source]) one.addEventListener("input", debounced(() => list(), 300));
  if (!lacking) list();

  function list(isMore = false) {
    const mine = recorded(model);
    const asked = doubts;
    return attempt(parts.list, async () => {
      let found;
      if (doubts) {
        ({ events: found, total } = await get(`${modelPath(model)}/suspicious?limit=${MOST_DOUBTS}`, { signal }));
      } else {
        const query = new URLSearchParams({ limit: String(PAGE) });
        if (label.value) query.set("label", (await labelMeant(model, label.value, signal)) ?? label.value);
        if (source.value) query.set("source", source.value);
        if (isMore) query.set("before", shown.at(-1).offset);
        found = (await get(`${modelPath(model)}/events?${query}`, { signal })).events;
      }
      const next = [...(isMore ? shown : []), ...found.map((one) => ({ ...one, ...mine.get(one.offset) }))];
      const labels = next.flatMap((one) => [...one.labels, ...one.rejected, ...(asked ? [one.label, one.first] : [])]);
      await findNames(model, labels, signal);
      if (asked !== doubts) return;
      shown = next;
      draw(found.length === PAGE && !doubts);
    });
  }

  function draw(isMore) {
    const events = doubts && source.value ? shown.filter((one) => one.source === source.value) : shown;
    if (events.length === 0) {
      const which = source.value ? " of this source" : "";
      fill(parts.list, doubts ? empty(`No suspicious event${which}.`, NO_DOUBT) : empty("No event.", "The newest 2,000 requests are read."));
      return;
    }
    const [title, column, said] = doubts ? ["Events, most suspicious first", "why", doubt] : ["Events, newest first", "labels", lesson];
    refill(parts.list,
      doubts ? sources() : null,
      table(title, ["time", column, "instance", "source", ""], events.map((one) => [
        h("span", { class: "whole" }, when(one.time)),
        h("span", { class: "break" }, said(model, one)),
        h("span", { class: "break wide", dir: "auto" }, breakable(textOf(one))),
        h("span", { class: "break" }, one.source ?? "–"),
        h("div", { class: "row end" }, acts(one).map(([name, onclick, look = ""]) =>
          h("button", { class: `small ${look}`, "aria-label": `${name} ${textOf(one)}`, onclick }, name))),
      ])),
      h("p", { class: "hint" }, "The log keeps words and features. The text as it was, and the rank, are known for what this tab has taught."),
      doubts && total > shown.length ? h("p", { class: "hint" }, `${shown.length} of ${total} events.`) : null,
      isMore ? h("button", { onclick: () => list(true) }, "Show more") : null,
    );
  }

  /** How many suspicious events each source has, if there are several; a click shows those of a source, another one all. */
  function sources() {
    const counts = [...Map.groupBy(shown.filter((one) => one.source), (one) => one.source)].sort(([, a], [, b]) => b.length - a.length);
    const choose = (name) => { source.value = source.value === name ? "" : name; draw(false); };
    return counts.length > 1 && h("div", { class: "row", role: "group", "aria-label": "By source" }, counts.map(([name, { length }]) =>
      h("button", { class: "small", "aria-pressed": String(source.value === name), onclick: () => choose(name) }, `${name}: ${count(length)}`)));
  }

  /** What can be done with an event: `[[name, work, look]...]`. */
  function acts(one) {
    const revise = async () => {
      correct(model, one);
      if (doubts) await dismiss(one);
      location.hash = `try/${part(model)}`;
    };
    return [
      ...(doubts ? [["Right after all", () => dismiss(one)]] : []),
      ...(one.text || one.features ? [["Correct", revise], ["Undo", () => takeBack(one), "quiet danger"]] : []),
    ];
  }

  /** Leave an event out of the suspicious ones from now on. */
  function dismiss(one) {
    return attempt(parts.said, async () => {
      await ask("DELETE", `${modelPath(model)}/suspicious/${part(one.offset)}`, { signal });
      await list();
    });
  }

  async function takeBack(one) {
    const effect = "A job takes them out of the index, the log and history; nothing brings them back.";
    const question = `${textOf(one)}. All events of its request are forgotten. ${effect}`;
    if (!(await confirmed("Undo this event?", question, "Undo it"))) return;
    const note = h("p", { class: "note" }, "Undoing…");
    fill(parts.said, note);
    await attempt(parts.said, async () => {
      const failed = await undo(model, one.offset, { signal, told: (text) => { note.textContent = `Undoing: ${text}`; } });
      fill(parts.said, h("p", { class: failed ? "worry" : "better" }, failed ? `Not undone: ${failed}` : "Forgotten."));
      if (!failed) announce("Forgotten.");
      await list();
    });
  }
}

/** The labels that an event taught, whether they are not all, and the rank that the best of them had before, if this tab knows it. */
function lesson(model, { labels, rejected, partial, rank }) {
  const said = [...labels.map((name) => spoken(model, name)), ...rejected.map((name) => `not ${spoken(model, name)}`)];
  const before = rank === undefined ? null : rank === null ? "not among the answers before" : `number ${count(rank)} before`;
  const more = [partial && "not all labels", labels.length > 0 && before].filter(Boolean).join("; ");
  return [said.join(", ") || "–", more && h("div", { class: "hint" }, more)];
}

/** Why an event is suspicious. */
const doubt = (model, { label, first, first_probability: p }) =>
  `taught ${spoken(model, label)}, but the model was ${chance(p)} sure of ${spoken(model, first)}`;

/** The text of an event, or the names of its features. */
function textOf({ text, features }) {
  if (typeof text === "string") return text.length > 300 ? `${text.slice(0, 300)}…` : text;
  const names = Object.keys(features ?? {});
  return `${names.slice(0, MOST_FEATURES).map(legible).join(" ")}${names.length > MOST_FEATURES ? " …" : ""}`;
}
