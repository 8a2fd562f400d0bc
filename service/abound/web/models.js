// Models: create, configure, export, import and delete them; their snapshots.

import { announce, breakable, card, confirmed, empty, field, fill, h, newId, refill, table } from "./dom.js";
import { ask, download, get, modelPath, newKey, part, post, Problem, upload } from "./api.js";
import { formOf } from "./form.js";
import { bytes, compact, count, counted, when } from "./format.js";

/** Settings that most users need; the others are listed below them. */
const FIRST = ["update", "analyzer"];
/** Settings that a model that has learned keeps. */
const FIXED = ["update", "rows", "idf", "boolean", "analyzer", "negative", "numbers", "normalize", "leak", "memory", "codes", "known"];
const RULES = { sls: ["Accurate", "better on all eleven sets that were measured"], fsu: ["Compact", "the published rule; smaller and faster"] };
const NAME = "[A-Za-z0-9][A-Za-z0-9_.\\-]{0,63}";
const REFRESH_MS = 5000;

/** A choice between the update rules: `element`, and `value()`, null while none is chosen. `chosen` is called with a rule. */
export function ruleChoice(initial, chosen = (_rule) => {}) {
  const name = newId("rule");
  const element = h("fieldset", { class: "all rules" }, h("legend", {}, "Update rule"), Object.entries(RULES).map(([rule, [title, why]]) =>
    h("label", { class: "rule" }, h("input", { type: "radio", name, value: rule, required: true, checked: rule === initial, onchange: () => chosen(rule) }), h("span", {}, h("strong", {}, title), " (", h("code", {}, rule), `): ${why}${rule === initial ? "; current" : ""}`))));
  return { element, value: () => element.querySelector(":checked")?.value ?? null };
}

export function show(root, { model, about, signal, problem, attempt, refused, lacks, every, again }) {
  const lacking = lacks("admin", "To change models") ?? (refused ? `${refused.message}.` : null);
  const parts = { list: h("div", { class: "stack" }), said: h("div", { role: "status" }), create: h("div", { class: "stack" }), configure: h("div", { class: "stack" }), snapshots: h("div", { class: "stack" }) };
  const saying = (text) => fill(parts.said, h("p", { class: "better" }, text));
  fill(root,
    card("All models", parts.list, parts.said),
    ...(lacking
      ? [h("p", { class: "note" }, lacking)]
      : [card("Create a model", h("details", {}, h("summary", {}, "Name, rule and settings"), parts.create)), card(["Settings of ", breakable(model)], parts.configure), importCard()]),
    card(["Snapshots of ", breakable(model)], parts.snapshots),
  );
  let listing = new AbortController(); // ended while a model is deleted, since its snapshots are missing then
  every(REFRESH_MS, list);
  if (!lacking) forms();

  async function list() {
    const until = AbortSignal.any([signal, listing.signal]);
    try {
      const [{ models }, { snapshots }] = await Promise.all([get("models", { signal: until }), get(`${modelPath(model)}/snapshots`, { signal: until })]);
      refill(parts.list, table("Models",
        ["model", "update", "#learned", "#classes", "#features", "#memory", "answers by", ...(lacking ? [] : [""])],
        models.map((one) => [
          h("a", { href: `#overview/${part(one.name)}`, class: "break" }, breakable(one.name)),
          h("span", { class: "whole" }, one.config.update, one.config.calibrate ? "" : ", no probabilities"),
          count(one.learned),
          compact(one.classes),
          compact(one.features),
          bytes(one.memory),
          h("span", { class: "whole" }, one.version === "live" ? "live index" : one.version.slice(0, 8)),
          ...(lacking ? [] : [h("div", { class: "row end" },
            h("button", { class: "small", "aria-label": `Export ${one.name}`, onclick: () => save(one) }, "Export"),
            h("button", { class: "small quiet danger", "aria-label": `Delete ${one.name}`, onclick: () => remove(one) }, "Delete"),
          )]),
        ]),
      ));
      drawSnapshots(snapshots);
    } catch (error) {
      if (!until.aborted) refill(parts.list, problem(error));
    }
  }

  function drawSnapshots(snapshots) {
    refill(parts.snapshots,
      snapshots.length
        ? table("Snapshots, newest first", ["made", "offset", "digest", "#size", ...(lacking ? [] : [""])],
            snapshots.map((one) => [
              h("span", { class: "whole" }, when(one.created)),
              h("code", {}, one.offset),
              h("code", {}, one.digest.slice(0, 8)),
              bytes(one.bytes),
              ...(lacking ? [] : [h("button", { class: "small last", "aria-label": `Restore ${one.offset}`, onclick: () => restore(one) }, "Restore")]),
            ]),
          )
        : empty("No snapshot yet.", "The worker makes one from time to time; a replica starts from the newest."),
      lacking ? null : h("div", { class: "row" }, h("button", { onclick: snapshot }, "Make a snapshot"), h("button", { onclick: undo }, "Undo the last replacement")),
    );
  }

  async function forms() {
    await attempt(parts.create, async () => {
      const document = await get("openapi.json", { signal });
      const { schema } = document.paths["/models/{model}"].put.requestBody.content["application/json"];
      drawForm(parts.create, schema, {}, "Create", h("input", { type: "text", required: true, pattern: NAME, maxlength: "64", autocomplete: "off" }));
      drawForm(parts.configure, schema, about.config, "Save");
    });
  }

  function drawForm(place, schema, initial, verb, name = null) {
    const rule = name ? ruleChoice(null) : null;
    const of = (isFirst) => {
      const properties = Object.fromEntries(Object.entries(schema.properties).filter(([one]) => FIRST.includes(one) === isFirst && !(rule && one === "update")));
      return formOf({ ...schema, properties }, { initial, first: FIRST, disabled: name || !(about.learned || about.classes) ? [] : FIXED });
    };
    const [first, rest] = [of(true), of(false)];
    const said = h("div", { role: "status" });
    const submit = async (event) => {
      event.preventDefault();
      let config;
      try {
        config = { ...(rule ? { update: rule.value() } : {}), ...first.values(), ...rest.values() };
      } catch (error) {
        fill(said, h("p", { class: "worry" }, error.message));
        return;
      }
      await attempt(said, async () => {
        await put(name?.value ?? model, config, name !== null);
      });
    };
    fill(place,
      h("p", { class: "note" }, name ? "Choose the update rule and how text is read now: they are fixed once the model has learned." : about.learned ? "Grey fields are fixed, since the model has learned. The job refit can change the update rule." : "The update rule and how text is read are fixed once the model has learned."),
      h("form", { class: "stack", onsubmit: submit },
        name ? h("div", { class: "fields" }, field("Name", name, "Letters, digits, “_”, “.” and “-”."), rule.element) : null,
        first.element,
        h("details", {}, h("summary", {}, "More settings"), rest.element),
        h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, verb)),
      ),
      said,
    );
  }

  async function put(name, config, isNew) {
    if (isNew) {
      const { models } = await get("models", { signal });
      if (models.some((one) => one.name === name)) {
        throw new Problem({ title: "This name is taken", detail: `There is a model “${name}” already.`, status: 409, type: "about:blank" });
      }
    }
    await ask("PUT", modelPath(name), { body: config, signal });
    announce(isNew ? `The model ${name} is there.` : `The settings of ${name} are saved.`);
    if (isNew) location.hash = `try/${part(name)}`;
    else again();
  }

  function importCard() {
    const file = h("input", { type: "file", required: true, accept: ".abound" });
    const name = h("input", { type: "text", required: true, pattern: NAME, maxlength: "64", autocomplete: "off" });
    const progress = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Uploaded" });
    return card("Import a model", h("form",
      {
        class: "fields",
        async onsubmit(event) {
          event.preventDefault();
          progress.hidden = false;
          await attempt(parts.said, async () => {
            await upload(`${modelPath(name.value)}/import`, file.files[0], (share) => { progress.value = share; }, signal);
            location.hash = `overview/${part(name.value)}`;
          });
          progress.hidden = true;
        },
      },
      field("File", file, "A file that Export made, here or in another service."),
      field("Name", name, "A model that has learned nothing, or a new one."),
      h("div", { class: "row all" }, h("button", { type: "submit", class: "primary" }, "Import")),
      h("div", { class: "all" }, progress),
    ));
  }

  async function save(one) {
    await attempt(parts.said, async () => {
      await download(`${modelPath(one.name)}/export`, `${one.name}.abound`, signal);
      saying(`${one.name} is exported.`);
    });
  }

  async function remove(one) {
    if (!(await confirmed(`Delete the model ${one.name}?`, `The ${counted(one.learned, "event")} that it learned, its snapshots and its versions are deleted.`, "Delete it"))) return;
    listing.abort();
    await attempt(parts.said, async () => {
      await ask("DELETE", modelPath(one.name), { signal });
      announce(`The model ${one.name} is deleted.`);
      if (one.name === model && location.hash !== "#models") location.hash = "models";
      else again();
    });
    listing = new AbortController();
  }

  async function snapshot() {
    await attempt(parts.said, async () => {
      await post(`${modelPath(model)}/snapshots`, undefined, { signal });
      saying("The snapshot is there.");
      await list();
    });
  }

  async function restore(one) {
    if (!(await confirmed(`Restore ${model}?`, `The model goes back to ${when(one.created)}. Later events are no longer learned. Undo brings them back.`, "Restore it"))) return;
    await replace("restore", { to: one.offset, reason: "restored a snapshot on the page" });
  }

  async function undo() {
    if (!(await confirmed(`Undo the last replacement of ${model}?`, "The model is again as it was before its last refit, restore or undo, with all that it has learned since.", "Undo it"))) return;
    await replace("undo", { reason: "undone on the page" });
  }

  /** Start a job that replaces the model, and show the jobs. */
  async function replace(method, params) {
    await attempt(parts.said, async () => {
      const body = { model, method, params };
      await post("jobs", body, { signal, headers: { "Idempotency-Key": newKey() } });
      location.hash = `versions/${part(model)}`;
    });
  }
}
