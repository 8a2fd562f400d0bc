// Files: teach, classify and evaluate a file, or register its labels; the browser reads it and sends it line by line.

import { announce, card, empty, field, fill, h, table } from "./dom.js";
import { ask, modelPath, newKey, part, saveAs, sendLines, upload } from "./api.js";
import { bytes, count, counted, percent } from "./format.js";
import { valueOf } from "./instance.js";

const ROLES = { text: "Text", label: "Labels", feature: "Feature", category: "Feature, a code", vector: "Vector", name: "Name of the label", description: "Description of the label", parent: "Parent of the label", none: "Left out" };
const GUESSES = { text: /^(text|body|subject|title|content|message|question)$/, label: /^(labels?|category|class|target|intent|tags?)$/, vector: /^vector$/, name: /^name$/, description: /^description$/, parent: /^parent$/, none: /^(id|key|source|date|created.*)$/ };
const ACTS = { learn: ["Teach it", "learn"], classify: ["Classify it, and download the answers", "classify"], evaluate: ["Evaluate it: are its labels ranked first?", "classify"], review: ["Put it into the queue To review", "classify"], register: ["Register its labels and names", "learn"], dataset: ["Keep it as a data set for jobs", "admin"] };
const FOR_SETS = /\.(parquet|arrow|(svm|vw|fasttext|txt|json)(\.gz)?)$|\.zst$/; // only the service reads these
const AT_ONCE = 200;
const SUGGESTED = 5;
const MOST_BYTES = 256 * 2 ** 20;
const MOST_ERRORS = 50;

export function show(root, { model, signal, problem, lacks, refused }) {
  const file = h("input", { type: "file", required: true, onclick: () => { file.value = ""; } }); // the same file, mended, is read again
  const select = (choices) => h("select", {}, choices.map(([value, said]) => h("option", { value }, said)));
  const act = select(Object.entries(ACTS).filter(([name, [said, scope]]) => !lacks(scope, said) && !(name === "dataset" && refused)).map(([name, [said]]) => [name, said]));
  const encoding = select([["utf-8", "UTF-8"], ["cp1252", "Windows-1252 (Western)"], ["cp1250", "Windows-1250 (Central)"], ["utf-16", "UTF-16"]]);
  const delimiter = select([["", "Guess"], [",", ","], [";", ";"], ["\t", "tab"], ["|", "|"]]);
  const name = h("input", { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]{0,63}", maxlength: "64", autocomplete: "off" });
  const naming = field("Name of the data set", name, "Letters, digits, “_”, “.” and “-”.");
  const separator = h("input", { maxlength: "64", placeholder: "none" });
  const parts = { columns: h("div", { class: "stack" }), seen: h("div", { class: "stack" }), said: h("div", { class: "stack", role: "status" }) };
  const start = h("button", { type: "submit", class: "primary" }, "Start");
  const stop = h("button", { hidden: true }, "Stop");
  let [records, roles, key] = [[], {}, newKey()]; // objects by column; what is sent again as it was is learned once
  fill(root, card("A file", act.options.length === 0 ? h("p", { class: "note" }, lacks("learn", "To teach a file")) : h(
    "form",
    { class: "stack", onsubmit: (event) => { event.preventDefault(); run(); } },
    h("div", { class: "fields" }, field("File", file, "A table whose first line names the columns, or JSON lines; .gz too."), field("Do this", act), field("Encoding", encoding), field("Delimiter", delimiter), field("Separator of labels", separator, "Such as “|”. Empty: a cell is one label."), naming),
    parts.columns,
    parts.seen,
    h("div", { class: "row" }, start, stop),
  ), parts.said));
  for (const one of [file, encoding, delimiter]) one.addEventListener("change", read);
  act.addEventListener("change", () => { naming.hidden = name.disabled = act.value !== "dataset"; });
  naming.hidden = name.disabled = true;
  for (const one of [act, separator]) one.addEventListener("change", preview);
  fill(parts.seen, empty("No file chosen.", "Other formats, and columns of dates or of numbers with decimal commas: abound learn FILE."));

  async function read() {
    const [chosen] = file.files;
    if (!chosen) return;
    [records, roles] = [[], {}];
    name.value = chosen.name.replace(/\.[a-z]+(\.(gz|zst))?$/, "").replace(/[^A-Za-z0-9_.-]/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 64);
    for (const one of [parts.said, parts.columns]) fill(one);
    if (FOR_SETS.test(chosen.name)) {
      fill(parts.seen, h("p", { class: "note" }, "This kind of file can be kept as a data set, or taught by abound learn FILE."));
      return;
    }
    try {
      if (chosen.size > MOST_BYTES) throw new Error(`${chosen.name} has ${bytes(chosen.size)}; use abound learn FILE for more than ${bytes(MOST_BYTES)}.`);
      const stream = chosen.name.endsWith(".gz") ? chosen.stream().pipeThrough(new DecompressionStream("gzip")) : chosen.stream();
      const text = new TextDecoder(encoding.value, { fatal: true }).decode(await new Response(stream).arrayBuffer());
      records = /^\s*[[{]/.test(text) ? jsonLines(text) : tableRecords(text, delimiter.value);
    } catch (error) {
      fill(parts.columns);
      fill(parts.seen, h("p", { class: "worry" }, error instanceof TypeError ? `The file is not ${encoding.selectedOptions[0].text}: choose another encoding.` : error.message));
      return;
    }
    const columns = [...new Set(records.slice(0, 100).flatMap(Object.keys))];
    roles = Object.fromEntries(columns.map((column) => [column, Object.keys(GUESSES).find((role) => GUESSES[role].test(column.trim().toLowerCase())) ?? "feature"]));
    fill(parts.columns, columns.length === 0 ? null : h("fieldset", {}, h("legend", {}, "What the columns are"), h("div", { class: "fields" }, columns.map((column) => {
      const role = select(Object.entries(ROLES));
      role.value = roles[column];
      role.addEventListener("change", () => { roles[column] = role.value; preview(); });
      return field(column, role);
    }))));
    preview();
  }

  const columnsOf = (role) => Object.keys(roles).filter((column) => roles[column] === role);

  function labelsOf(record) {
    const given = columnsOf("label").flatMap((column) => record[column] ?? []).filter((one) => one !== "");
    return separator.value ? given.flatMap((one) => String(one).split(separator.value)).map((one) => one.trim()).filter(Boolean) : given;
  }

  /** Return what is sent for a record. */
  function itemOf(record) {
    if (act.value === "register") return { label: labelsOf(record)[0], ...Object.fromEntries(["name", "description", "parent"].flatMap((role) => columnsOf(role).slice(0, 1).filter((column) => record[column]).map((column) => [role, record[column]]))) };
    const texts = columnsOf("text").filter((column) => record[column]);
    const features = [...columnsOf("feature"), ...columnsOf("category")].filter((column) => ![undefined, null, ""].includes(record[column])).map((column) => (roles[column] === "category" ? { [column]: String(record[column]) } : record[column]?.constructor === Object ? record[column] : { [column]: typeof record[column] === "string" ? valueOf(record[column]) : record[column] }));
    const [vector] = columnsOf("vector");
    return {
      ...(texts.length ? { text: texts.length > 1 ? Object.fromEntries(texts.map((column) => [column, record[column]])) : record[texts[0]] } : {}),
      ...(features.length ? { features: Object.assign({}, ...features) } : {}),
      ...(vector && record[vector] ? { vector: record[vector] } : {}),
      ...(act.value === "learn" ? { labels: labelsOf(record) } : act.value === "review" ? { k: 1, remember: true } : act.value === "classify" ? { k: SUGGESTED, names: true } : { k: SUGGESTED, decide: false }),
    };
  }

  function preview() {
    key = newKey();
    if (records.length === 0) {
      if (file.files.length && !FOR_SETS.test(file.files[0].name)) fill(parts.seen, h("p", { class: "worry" }, "The browser finds no records in it."));
      return;
    }
    const labels = new Set(records.flatMap(labelsOf));
    fill(parts.seen, h("p", {}, `${counted(records.length, "record")}, ${counted(labels.size, "label")}${labels.size ? `: ${[...labels].slice(0, 5).join(", ")}${labels.size > 5 ? ", …" : ""}` : ""}. The first is sent as:`), h("pre", { tabindex: "0", role: "region", "aria-label": "The first record" }, JSON.stringify(itemOf(records[0]), null, 1).slice(0, 2000)));
  }

  /** The query of an upload. Without columns, the service guesses. */
  const queryOf = (chosen) => new URLSearchParams([["filename", chosen.name], ["encoding", encoding.value], ...[["text", "text"], ["label", "label"], ["category", "category"], ["ignore", "none"], ["vector", "vector"]].flatMap(([option, role]) => columnsOf(role).map((column) => [option, column])), ...(delimiter.value ? [["delimiter", delimiter.value === "\t" ? "tab" : delimiter.value]] : []), ...(separator.value ? [["label_separator", separator.value]] : [])]);

  async function run() {
    if (records.length === 0 && act.value !== "dataset") return;
    const mine = new AbortController();
    const until = AbortSignal.any([signal, mine.signal]);
    const [kind, chosen] = [act.value, file.files[0]];
    const progress = h("progress", { max: "1", value: "0", "aria-label": "Sent" });
    const note = h("p", { class: "hint" });
    const errors = [];
    const answers = [];
    fill(parts.said, progress, note);
    [start.disabled, stop.hidden, stop.onclick] = [true, false, () => mine.abort()];
    let n = 0;
    try {
      if (kind === "dataset") {
        await upload(`datasets/${part(name.value)}?${queryOf(chosen)}`, chosen, (share) => {
          progress.value = share;
          note.textContent = share < 1 ? `${Math.round(100 * share)} % of ${bytes(chosen.size)}` : "All sent. Every line is read and checked now.";
        }, until);
      }
      for (; kind !== "dataset" && n < records.length; n += AT_ONCE) {
        const items = records.slice(n, n + AT_ONCE).map(itemOf);
        if (kind === "register") await ask("PUT", `${modelPath(model)}/labels`, { body: { labels: items, source: `file ${chosen.name}` }, signal: until });
        else {
          const lines = kind === "learn" ? items.map((item, at) => ({ ...item, key: `${key}-${n + at}`, source: `file ${chosen.name}`.slice(0, 200) })) : items;
          (await sendLines(`${modelPath(model)}/${kind === "learn" ? "learn" : "classify"}`, lines, until)).forEach((answer, at) => {
            answers.push(answer);
            if (answer.status >= 400) errors.push([count(n + at + 1), answer.detail]);
          });
        }
        progress.value = Math.min(1, (n + AT_ONCE) / records.length);
        note.textContent = `${count(Math.min(records.length, n + AT_ONCE))} of ${count(records.length)}, ${counted(errors.length, "error")}. It stops if you leave this view.`;
      }
      finish(kind, chosen.name, answers, errors);
    } catch (error) {
      if (!signal.aborted) fill(parts.said, error.name === "AbortError" ? h("p", { class: "note" }, `Stopped after ${counted(Math.min(n, records.length), "record")}.`) : [problem(error), h("p", { class: "hint" }, `It was sent up to record ${count(n)}.`)]);
    } finally {
      [start.disabled, stop.hidden] = [false, true];
    }
  }

  function finish(kind, title, answers, errors) {
    const done = records.length - errors.length;
    const said = { learn: `${counted(done, "event")} learned.`, classify: `${counted(done, "record")} classified${decisions(answers)}.`, register: `${counted(done, "label")} registered.`, evaluate: accuracy(answers), review: `${counted(done, "instance")} to review.`, dataset: `“${name.value}” is there.` }[kind];
    fill(parts.said,
      h("p", { class: "better" }, said),
      kind === "learn" && done ? h("p", {}, h("a", { href: `#events/${part(model)}` }, "See its events"), `: their source is “file ${title}”, by which the job forget removes them.`) : null,
      kind === "review" && done ? h("p", {}, h("a", { href: `#ask/${part(model)}` }, "Review them"), "; they are kept for a day.") : null,
      kind === "classify" ? h("div", { class: "row" }, h("button", { onclick: () => saveAs(new Blob([answersTable(answers)], { type: "text/csv" }), `${title.replace(/\..*/, "")}-labels.csv`) }, "Download the answers")) : null,
      kind === "dataset" ? h("p", {}, h("a", { href: `#datasets/${part(model)}` }, "See its rows"), ", or ", h("a", { href: `#versions/${part(model)}/${part(name.value)}` }, "fit a job on it"), ".") : null,
      errors.length ? [h("p", { class: "worry" }, `${counted(errors.length, "record was", "records were")} refused; record 1 is the first after the header.`), table("Refused records", ["#record", "why"], errors.slice(0, MOST_ERRORS))] : null,
    );
    announce(said);
  }

  function accuracy(answers) {
    const asked = answers.map(({ labels }, at) => [labels?.map((one) => one.label), labelsOf(records[at]).map(String)]).filter(([found, right]) => found && right.length);
    const share = (most) => percent(asked.length ? asked.filter(([found, right]) => found.slice(0, most).some((one) => right.includes(one))).length / asked.length : null);
    return `R@1 ${share(1)}, R@5 ${share(SUGGESTED)} of ${counted(asked.length, "record with a label", "records with a label")}. The model has not learned them from this page now; if it learned them before, the figures are too high.`;
  }

  /** How many records were answered, deferred, and none, if the model decides. */
  const decisions = (answers) => Object.entries({ answer: "answered", defer: "for a person", none: "none of the labels" }).map(([name, said]) => [answers.filter((one) => one.decision === name).length, said]).filter(([n]) => n).map(([n, said], at) => `${at ? "," : ":"} ${count(n)} ${said}`).join("");

  /** The records with their best labels, as CSV. */
  function answersTable(answers) {
    const cell = (value) => `"${String(typeof value === "object" ? JSON.stringify(value) : (value ?? "")).replaceAll('"', '""')}"`;
    const columns = Object.keys(roles);
    const decided = answers.some((one) => one.decision) ? ["decision"] : [];
    const head = Array.from({ length: SUGGESTED }, (_, at) => [`label ${at + 1}`, `name ${at + 1}`, `score ${at + 1}`, `probability ${at + 1}`]).flat();
    const rows = answers.map(({ labels = [], decision }, at) => [...columns.map((column) => records[at][column]), ...decided.map(() => decision), ...labels.flatMap((one) => [one.label, one.name, one.score, one.probability])]);
    return [[...columns, ...decided, ...head], ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
  }
}

function jsonLines(text) {
  return text.split("\n").flatMap((line, at) => {
    let found;
    try {
      found = line.trim() ? [JSON.parse(line)] : [];
    } catch (error) {
      throw new Error(`Line ${at + 1} is not JSON: ${error.message}`);
    }
    if (found.some((one) => Object(one) !== one || Array.isArray(one))) throw new Error(`Line ${at + 1} is not a JSON object.`);
    return found;
  });
}

/** Read a table whose first row names the columns. A row may lack cells; one more than the columns would shift the labels. */
export function tableRecords(text, chosen) {
  const [first] = text.split(/\r?\n/, 1);
  const delimiter = chosen || [",", ";", "\t", "|"].reduce((best, one) => (first.split(one).length > first.split(best).length ? one : best));
  const sign = delimiter === "\t" ? "\\t" : `\\x${delimiter.charCodeAt(0).toString(16)}`;
  const cell = new RegExp(`(?:"([^"]*(?:""[^"]*)*)"|([^\\n\\r${sign}]*))(${sign}|\\r?\\n|\\r|$)`, "gy");
  const rows = [[]];
  while (cell.lastIndex < text.length) {
    const [, quoted, plain, end] = cell.exec(text);
    rows.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
    if (end !== delimiter) rows.push([]);
  }
  const [columns, ...records] = rows.filter((row) => row.some((one) => one !== ""));
  const wide = records.findIndex((row) => row.slice(columns.length).some((one) => one !== ""));
  if (wide >= 0) throw new Error(`Record ${wide + 1} has ${records[wide].length} cells for ${columns.length} columns: quote cells that contain “${delimiter}”, or choose another delimiter.`);
  return records.map((row) => Object.fromEntries(columns.map((column, at) => [column, row[at] ?? ""])));
}
