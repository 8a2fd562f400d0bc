// Data sets: files that jobs can learn from instead of history.

import { announce, breakable, card, confirmed, empty, field, fill, h, refill, table } from "./dom.js";
import { ask, get, part, upload } from "./api.js";
import { bytes, count, counted, legible, when } from "./format.js";

const FORMATS = "JSON lines (.jsonl), JSON (.json), a table (.csv, .tsv), svmlight (.svm) or text (.txt: Extreme Classification, fastText, Vowpal Wabbit), with .gz or .zst too; Parquet or Arrow (.parquet, .arrow).";
const NAMED = /\.((txt|svm|json|jsonl|csv|tsv|fasttext|vw)(\.(gz|zst))?|parquet|arrow)$/;
/** Choices of the options of reading a file; the empty one is to guess. */
const CHOICES = {
  format: ["jsonl", "json", "csv", "tsv", "parquet", "arrow", "svm", "txt", "fasttext", "vw"],
  delimiter: [",", ";", "tab", "|"],
  quote: ['"', "'", "none"],
  header: ["true", "false"],
  encoding: ["utf-8", "cp1252", "cp1250", "cp1251", "utf-16"],
  decimal: [".", ","],
};
const CUT = 200;
const CHECK_MS = 1000;

const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const listed = (names) => names.split(",").map((one) => one.trim()).filter(Boolean);

const shortened = (text) => (text.length > CUT ? `${text.slice(0, CUT)}…` : text);

/** The upload in progress, which continues in other views: `{ said, stop, ended }`. */
let underWay = null;

export function show(root, { signal, problem, refused }) {
  const file = h("input", { type: "file", required: true });
  const name = h("input", { type: "text", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]{0,63}", maxlength: "64", autocomplete: "off" });
  const roles = Object.fromEntries(["text", "label", "category", "number", "date", "ignore"].map((key) => [key, h("input", { type: "text" })]));
  const single = { label_separator: h("input", { type: "text", maxlength: "64" }), vector: h("input", { type: "text" }), skip_rows: h("input", { type: "number", min: "0", max: "10000" }) };
  for (const [key, choices] of Object.entries(CHOICES)) single[key] = h("select", {}, h("option", { value: "" }, "Guess"), ...choices.map((one) => h("option", { value: one }, one)));
  const options = h(
    "details",
    {},
    h("summary", {}, "Columns and reading"),
    h(
      "div",
      { class: "fields" },
      field("Text", roles.text, "Columns of the text, separated by commas. Empty: “text”."),
      field("Label", roles.label, "Columns of the labels. Empty: “labels” or “label”. Of several, those of 0 and 1 are labels by their name."),
      field("Label separator", single.label_separator, "Such as “|”. Empty: a cell is one label."),
      field("Categories", roles.category, "Columns whose numbers are codes."),
      field("Numbers", roles.number, "Columns of numbers such as 1.234,50 €."),
      field("Dates", roles.date, "Columns of dates."),
      field("Vector", single.vector, "Column of the vectors, lists of numbers. Empty: “vector”. All other columns are features."),
      field("Left out", roles.ignore, "“*” for all columns and fields without a role."),
      field("Format", single.format, "Empty: by the name of the file and its first line."),
      field("Delimiter", single.delimiter, "Of the cells of a CSV file."),
      field("Quotes", single.quote, "Of the cells."),
      field("Header", single.header, "Whether the first line names the columns; else they are 1, 2, …"),
      field("Lines before the table", single.skip_rows, "Empty: guessed."),
      field("Encoding", single.encoding, "Of the file."),
      field("Decimal sign", single.decimal, "Of numbers."),
    ),
  );
  const parts = { said: h("div", { role: "status" }), list: h("div", { class: "stack" }), rows: h("div", { class: "stack" }), send: h("button", { class: "primary" }, "Upload"), stop: h("button", { type: "button", hidden: true }, "Stop") };
  const newSet = card(
    "A new data set",
    h(
      "form",
      { class: "fields", onsubmit: send },
      field("File", file, FORMATS),
      options,
      field("Name", name, "Letters, digits, “_”, “.” and “-”."),
      h("div", { class: "row all" }, parts.send, parts.stop),
    ),
    parts.said,
  );
  fill(root, newSet, card("Data sets", parts.list));
  let typed = false;
  name.addEventListener("input", () => { typed = name.value !== ""; });
  file.addEventListener("change", () => {
    const given = file.files[0]?.name;
    if (given && !typed) name.value = given.replace(NAMED, "").replace(/[^A-Za-z0-9_.-]/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 64);
  });
  newSet.hidden = Boolean(refused);
  if (refused) fill(parts.list, problem(refused));
  else list();
  if (underWay) follow();

  async function list() {
    try {
      const { datasets } = await get("datasets", { signal });
      if (datasets.length === 0) {
        fill(parts.list, empty("No data sets yet.", "Upload one above; a job can then be fitted on it."));
        return;
      }
      refill(
        parts.list,
        table(
          "All data sets",
      ["name", "#instances", "#features", "#labels", "#size", "created", ""],
          datasets.map((one) => [
            h("strong", { class: "break" }, breakable(one.name)),
            count(one.instances),
            count(one.features),
            count(one.classes),
            bytes(one.bytes),
            h("span", { class: "whole" }, when(one.created)),
            h(
              "div",
              { class: "row end" },
              h("button", { type: "button", class: "small", "aria-label": `Show rows of ${one.name}`, onclick: () => preview(one.name) }, "Show rows"),
              h("button", { type: "button", class: "small quiet danger", "aria-label": `Delete ${one.name}`, onclick: () => remove(one.name) }, "Delete"),
            ),
          ]),
        ),
        parts.rows,
      );
    } catch (error) {
      if (signal.aborted) return;
      if (error.isMissing) {
        newSet.hidden = true;
        fill(parts.list, empty("This service takes no data sets.", "Jobs learn from history: from what the model was taught."));
      } else fill(parts.list, problem(error));
    }
  }

  async function preview(which) {
    try {
      const { rows } = await get(`datasets/${part(which)}/rows`, { signal });
      fill(
        parts.rows,
        h("h3", {}, `The first ${counted(rows.length, "row")} of `, breakable(which)),
        table(`Rows of ${which}`, ["labels", "instance"], rows.map((one) => [
          h("span", { class: "break" }, breakable(shortened(one.labels.map(legible).join(", ")))),
          h("span", { class: "break wide" }, shortened([one.text, one.features].filter(Boolean).map(plain).join(" "))),
        ])),
      );
      announce(`${counted(rows.length, "row")} of ${which}.`);
    } catch (error) {
      if (!signal.aborted) fill(parts.rows, problem(error));
    }
  }

  async function send(event) {
    event.preventDefault();
    const [chosen] = file.files;
    if (!NAMED.test(chosen.name) && !single.format.value) {
      fill(parts.said, h("p", { class: "worry" }, `This kind of file cannot be read: ${chosen.name}. It must be ${FORMATS}`));
      return;
    }
    const called = name.value;
    const stop = new AbortController();
    const progress = h("progress", { max: "1", value: "0", "aria-label": "Uploaded" });
    const note = h("p", { class: "hint" }, "0 %");
    const several = Object.entries(roles).flatMap(([key, input]) => listed(input.value).map((one) => [key, one]));
    const given = Object.entries(single).map(([key, input]) => [key, input.value]).filter(([, value]) => value);
    const suffix = /(\.(gz|zst))?$/.exec(chosen.name)[0];
    const query = new URLSearchParams([["filename", single.format.value ? `data.${single.format.value}${suffix}` : chosen.name], ...several, ...given]);
    let isSent = false;
    const ended = upload(`datasets/${part(called)}?${query}`, chosen, (share) => {
      progress.value = share;
      note.textContent = share < 1 ? `${Math.round(100 * share)} % of ${bytes(chosen.size)}` : "All sent. Every line is read and checked now.";
      if (share < 1 || isSent) return;
      isSent = true;
      progress.removeAttribute("value"); // until the check reports
      watchCheck(called, progress, note, () => underWay?.ended === ended);
    }, stop.signal).then(() => called);
    underWay = { said: [progress, note], stop: () => stop.abort(), ended };
    ended.then(
      () => announce(`The data set ${called} is there.`),
      (error) => announce(error.name === "AbortError" ? "Stopped; nothing is kept." : `${error.title}: ${error.message}`),
    );
    if (await follow()) {
      name.value = file.value = "";
      typed = false;
    }
  }

  /** Show how much of a file was checked, while `isRunning`. */
  async function watchCheck(called, progress, note, isRunning) {
    progress.setAttribute("aria-label", "Checked");
    while (isRunning()) {
      try {
        const { checking } = await get("datasets");
        if (called in checking) {
          progress.value = checking[called];
          note.textContent = `All sent. ${Math.round(100 * checking[called])} % of the file is read and checked.`;
        }
      } catch {
        // The upload itself says what is wrong.
      }
      await new Promise((resolve) => setTimeout(resolve, CHECK_MS));
    }
  }

  /** Show the upload in progress until it ends; return whether it succeeded. */
  async function follow() {
    const { said, stop, ended } = underWay;
    parts.stop.onclick = stop;
    parts.send.disabled = true;
    parts.stop.hidden = false;
    fill(parts.said, ...said);
    try {
      fill(parts.said, h("p", { class: "better" }, `“${await ended}” is there.`));
      if (!signal.aborted) await list();
      return true;
    } catch (error) {
      fill(parts.said, error.name === "AbortError" ? h("p", { class: "note" }, "Stopped; nothing is kept.") : problem(error));
      return false;
    } finally {
      if (underWay?.ended === ended) underWay = null;
      parts.send.disabled = false;
      parts.stop.hidden = true;
    }
  }

  async function remove(which) {
    if (!(await confirmed(`Delete ${which}?`, "Jobs that read it fail. Versions that were fitted on it stay.", "Delete it"))) return;
    try {
      await ask("DELETE", `datasets/${part(which)}`, { signal });
      announce(`The data set ${which} is deleted.`);
      await list();
    } catch (error) {
      fill(parts.said, problem(error));
    }
  }
}
