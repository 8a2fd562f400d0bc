// Events: what a model was taught, the newest or the most suspicious first; corrected and undone.

import { announce, breakable, card, choice, confirmed, debounced, empty, field, fill, h, table } from "./dom.js";
import { ask, get, modelPath, part } from "./api.js";
import { chance, legible, when } from "./format.js";
import { correct } from "./instance.js";
import { recorded, undo } from "./journal.js";
import { findNames, labelMeant, spoken } from "./names.js";

const PAGE = 50;
const MOST_FEATURES = 30;

export function show(root, { model, signal, attempt, lacks }) {
  const label = h("input", { type: "search", maxlength: "512", autocomplete: "off" });
  const source = h("input", { type: "search", maxlength: "200", autocomplete: "off" });
  const parts = { said: h("div", { role: "status" }), list: h("div", { class: "stack" }) };
  const lacking = lacks("learn", "To see what was taught");
  let shown = [];
  let total = 0; // suspicious events
  let doubts = false; // whether suspicious events are listed
  const kind = choice("Which events", [[false, "Newest"], [true, "Suspicious"]], doubts, (asked) => { doubts = label.disabled = source.disabled = asked; list(); });
  fill(root, card("What the model was taught",
    lacking ? h("p", { class: "note" }, lacking) : [kind, h("div", { class: "fields" }, field("Label", label, "A label or its name, right or rejected."), field("Source", source, "Such as page."))],
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
        ({ events: found, total } = await get(`${modelPath(model)}/suspicious?limit=${PAGE}`, { signal }));
      } else {
        const meant = label.value && (await labelMeant(model, label.value, signal));
        const query = { limit: String(PAGE), ...(label.value ? { label: meant ?? label.value } : {}), ...(source.value ? { source: source.value } : {}), ...(isMore ? { before: shown.at(-1).offset } : {}) };
        found = (await get(`${modelPath(model)}/events?${new URLSearchParams(query)}`, { signal })).events;
      }
      const next = [...(isMore ? shown : []), ...found.map((one) => ({ ...one, ...mine.get(one.offset) }))];
      await findNames(model, next.flatMap((one) => [...one.labels, ...one.rejected, ...(asked ? [one.label, one.first] : [])]), signal);
      if (asked !== doubts) return;
      shown = next;
      draw(found.length === PAGE && !doubts);
    });
  }

  function draw(isMore) {
    if (shown.length === 0) {
      fill(parts.list, doubts ? empty("No suspicious event.", "A model with calibrate or decide lists events whose label it held improbable, and another one probable, before it learned them.") : empty("No event.", "The newest 2,000 requests are read."));
      return;
    }
    fill(parts.list,
      table(doubts ? "Events, most suspicious first" : "Events, newest first", ["time", "instance", doubts ? "why" : "labels", "source", ...(doubts ? [] : ["#rank before"]), ""], shown.map((one) => [
        h("span", { class: "whole" }, when(one.time)),
        h("span", { class: "break wide", dir: "auto" }, breakable(textOf(one))),
        doubts ? h("span", { class: "break" }, `taught ${spoken(model, one.label)}, but the model was ${chance(one.first_probability)} sure of ${spoken(model, one.first)}`) : h("span", { class: "break" }, one.labels.map((name) => spoken(model, name)).join(", "), one.rejected.map((name) => ` not ${spoken(model, name)}`).join(",")),
        h("span", { class: "break" }, one.source ?? "–"),
        ...(doubts ? [] : ["rank" in one ? (one.rank ?? "none") : "–"]),
        h("div", { class: "row end" },
          doubts ? h("button", { class: "small", "aria-label": `Right after all: ${textOf(one)}`, onclick: () => dismiss(one) }, "Right after all") : null,
          one.text || one.features ? h("button", { class: "small", "aria-label": `Correct ${textOf(one)}`, onclick: async () => { correct(model, one); if (doubts) await dismiss(one); location.hash = `try/${part(model)}`; } }, "Correct") : null,
          one.text || one.features ? h("button", { class: "small quiet danger", "aria-label": `Undo ${textOf(one)}`, onclick: () => takeBack(one) }, "Undo") : null,
        ),
      ])),
      h("p", { class: "hint" }, "The log keeps words and features. The text as it was, and the rank, are known for what this tab has taught."),
      doubts && total > shown.length ? h("p", { class: "hint" }, `${shown.length} of ${total} events.`) : null,
      isMore ? h("button", { onclick: () => list(true) }, "Show more") : null,
    );
  }

  /** Leave an event out of the suspicious ones from now on. */
  function dismiss(one) {
    return attempt(parts.said, async () => {
      await ask("DELETE", `${modelPath(model)}/suspicious/${part(one.offset)}`, { signal });
      await list();
    });
  }

  async function takeBack(one) {
    if (!(await confirmed("Undo this event?", `${textOf(one)}. All events of its request are forgotten. A job takes them out of the index, the log and history; nothing brings them back.`, "Undo it"))) return;
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

/** The text of an event, or the names of its features. */
function textOf({ text, features }) {
  if (typeof text === "string") return text.length > 300 ? `${text.slice(0, 300)}…` : text;
  const names = Object.keys(features ?? {});
  return `${names.slice(0, MOST_FEATURES).map(legible).join(" ")}${names.length > MOST_FEATURES ? " …" : ""}`;
}
