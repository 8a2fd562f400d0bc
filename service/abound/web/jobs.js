// Jobs: submit one by a form, follow it while it runs, cancel it.

import { announce, breakable, card, confirmed, empty, field, fill, h, refill, single, term } from "./dom.js";
import { ask, done, get, isOver, newKey, part, post } from "./api.js";
import { formOf } from "./form.js";
import { counted, duration, percent, when } from "./format.js";

const REFRESH_MS = 2000;
const MOST_SHOWN = 20;
const MEASURES = ["R@1", "R@5", "MRR", "P@3", "nDCG@5"];
/** What each job does to the live index, for the confirmation; other methods get a general question. */
const DOES = {
  forget: "The events are taken out of the index, the log, history and the snapshots, and versions that were fitted on them are deleted. Nothing brings them back.",
  restore: "Events after this offset are no longer learned. The job undo brings them back.",
  refit: "All of history is learned again, and the result replaces the live index.",
  undo: "The model is again as it was before its last replacement, with all that it has learned since.",
};

/** The jobs of the view: `element`, and `again()`, which reloads them; `ended` is called when a job ends. */
export function jobs({ model, signal, problem, attempt, refused, every, ended }) {
  const list = h("div", { class: "stack" });
  const shown = new Map();

  if (refused) fill(list, h("p", { class: "note" }, `${refused.message}.`));
  else every(REFRESH_MS, again);

  function again() {
    return attempt(list, async () => {
      const found = await get(`jobs?model=${part(model)}&limit=${MOST_SHOWN}`, { signal });
      if (found.jobs.length) draw(found.jobs);
      else fill(list, empty("No jobs yet.", "Start one with the form above."));
    });
  }

  /** Jobs keep their elements, so that focus and open tables stay. */
  function draw(all) {
    for (const id of shown.keys()) if (!all.some((job) => job.id === id)) shown.delete(id);
    for (const job of all) {
      if (!shown.has(job.id)) shown.set(job.id, { element: h("article", { class: "job", "aria-label": `Job ${job.method}` }), said: "" });
      take(job);
    }
    refill(list, all.map((job) => shown.get(job.id).element));
  }

  function take(job) {
    const entry = shown.get(job.id);
    if (!entry) return;
    const said = JSON.stringify({ ...job, heartbeat: 0 });
    if (said === entry.said) return;
    if (entry.isRunning && isOver(job)) {
      announce(`The job ${job.method} has ${job.state}.`);
      ended(job);
    }
    Object.assign(entry, { said, isRunning: !isOver(job) });
    paint(entry, job);
  }

  function paint(entry, job) {
    const isEnded = isOver(job);
    const took = job.started && job.ended ? `, took ${duration(job.ended - job.started)}` : "";
    const progress = h("progress", { max: "1", "aria-label": `Progress of ${job.method}` });
    if (job.state === "running") progress.value = job.progress;
    if (job.state === "queued") progress.value = 0;
    const measures = MEASURES.filter((name) => typeof job.metrics?.[name] === "number").map((name, at) => [at ? " · " : null, term(name), ` ${percent(job.metrics[name])}`]);
    entry.cancel ??= h("button", { class: "small", "aria-label": `Cancel ${job.method}`, onclick: () => cancel(job, entry) }, "Cancel");
    entry.acts ??= h("div", { class: "row" }, entry.cancel);
    entry.cancel.disabled = job.cancelling;
    refill(entry.element,
      h("div", { class: "row apart" },
        h("h3", {}, job.method, " ", h("span", { class: `tag ${job.state === "failed" ? "bad" : isEnded ? "" : "on"}` }, job.cancelling && !isEnded ? "stopping" : job.state)),
        h("span", { class: "hint" }, `${when(job.created)}${took}`),
      ),
      isEnded ? null : progress,
      isEnded ? null : h("p", { class: "hint" }, `${job.stage || (job.state === "queued" ? "waits for a worker" : "begins")} · ${percent(job.progress)}`),
      job.error ? h("p", { class: job.state === "failed" ? "worse break" : "hint break" }, job.error) : null,
      measures.length ? h("p", {}, measures, h("span", { class: "hint" }, " on what it had not seen")) : null,
      job.version ? h("p", { class: "hint" }, "Version ", h("code", {}, job.version)) : null,
      h("p", { class: "hint break" }, "from ", breakable(job.data), Object.keys(job.params).length ? " · " : "", h("code", {}, breakable(paramsOf(job.params)))),
      isEnded ? null : entry.acts,
    );
  }

  async function cancel(job, entry) {
    if (!(await confirmed(`Cancel ${job.method}?`, "It stops within seconds, and leaves nothing behind.", "Cancel it"))) return;
    try {
      take(await ask("DELETE", `jobs/${part(job.id)}`, { signal }));
    } catch (error) {
      entry.element.append(problem(error) || "");
    }
  }

  return { element: card("Jobs", list), again };
}

const TIMES = ["since", "until"];

const paramsOf = (given) =>
  Object.entries(given)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => `${name}=${TIMES.includes(name) ? when(value) : typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(" ");

/** The form for a new job; `started` is called when a job is accepted. */
export function newJob({ model, text: wanted, signal, problem, attempt, refused, started }) {
  const method = h("select", { required: true });
  const data = h("select", {}, h("option", { value: "history" }, "history: what this model learned"));
  const activate = h("select", {}, h("option", { value: "never" }, "only when I activate it"), h("option", { value: "if_better" }, "when it proves better on live traffic"));
  const activation = field("Serve its version", activate);
  const source = field("Learn from", data);
  const parts = { about: h("p", { class: "note" }), params: h("div", {}), said: h("div", { role: "status" }) };
  const start = h("button", { type: "submit", class: "primary" }, "Start");
  const element = card("Start a job", h("p", { class: "note" }, "Asking what jobs can do…"));
  let methods = [];
  let past = []; // jobs
  let sets = [];
  let form = null;
  let unsure = null; // a request without an answer, and its idempotency key: a retry starts no second job

  if (refused) element.hidden = true; // the list of jobs says why
  else begin();

  async function begin() {
    try {
      [{ methods }, { jobs: past }] = await Promise.all([get("methods", { signal }), get(`jobs?model=${part(model)}&limit=100`, { signal })]);
    } catch (error) {
      if (!signal.aborted) fill(element, h("h2", {}, "Start a job"), problem(error));
      return;
    }
    const kinds = [...new Set(methods.map((one) => one.kind))].sort();
    const titles = { fit: "Fit a new version", replace: "Replace the live index" };
    fill(method, h("option", { value: "", disabled: true, selected: true }, "choose one"), kinds.map((kind) => h("optgroup", { label: titles[kind] || kind }, methods.filter((one) => one.kind === kind).map((one) => h("option", { value: one.name }, one.name)))));
    element.replaceChildren(
      element.firstElementChild,
      h("form", { onsubmit: single(submit, start) },
        h("fieldset", {},
          h("legend", { class: "unseen" }, "What the job is to do"),
          h("div", { class: "fields" }, field("Method", method), source, activation),
          parts.about,
          parts.params,
          h("div", { class: "row" }, start),
        ),
      ),
      parts.said,
    );
    method.addEventListener("change", choose);
    if (wanted === "refit") {
      method.value = wanted;
      choose();
      form.fields.get("search").querySelector("input").value = '{"update": ["fsu", "sls"]}';
    }
    try {
      sets = (await get("datasets", { signal })).datasets;
      data.append(...sets.map((one) => h("option", { value: one.name, selected: one.name === wanted }, `data set ${one.name}`)));
    } catch {
      // Without data sets, history is the only choice.
    }
  }

  function choose() {
    const chosen = methods.find((one) => one.name === method.value);
    const isFit = chosen.kind === "fit";
    activation.hidden = source.hidden = !isFit;
    const last = past.find((job) => job.method === chosen.name && job.state === "succeeded");
    const { "R@1": own, "live R@1": live } = last?.metrics ?? {};
    const took = last ? ` Last time it took ${duration(last.ended - last.started)}${typeof own === "number" ? `, with R@1 ${percent(own)}${typeof live === "number" ? ` against ${percent(live)} of the live index` : ""}` : ""}.` : "";
    parts.about.textContent = `${chosen.summary}${took}${isFit ? " The live index is often better on data that changes: compare both below before you activate." : ""}`;
    form = formOf(chosen.params);
    form.fields.get("dry_run")?.remove(); // the confirmation runs it first
    const auto = form.fields.get("auto");
    const more = h("details", { open: !isFit }, h("summary", {}, "Parameters"), form.element);
    fill(parts.params, auto ? h("div", { class: "fields" }, auto) : null, Object.keys(chosen.params.properties || {}).length ? more : null);
  }

  /** Ask for confirmation of a job that changes the live index. */
  async function isMeant(name, given) {
    const lines = [name === "forget" ? await affected(given) : null, DOES[name] || "It changes the live index.", paramsOf(given)].filter(Boolean);
    return confirmed(`Start ${name} on ${model}?`, lines.join(" "), "Start it");
  }

  /** Return a sentence with the number of events that a forget would remove, counted by a dry run. */
  async function affected(given) {
    fill(parts.said, h("p", { class: "note" }, "Counting the events…"));
    const job = await done((job) => (job ? get(`jobs/${part(job.id)}`, { signal }) : post("jobs", { model, method: "forget", params: { ...given, dry_run: true } }, { signal })));
    fill(parts.said);
    if (job.state !== "succeeded") return `The events could not be counted: ${job.error ?? job.state}.`;
    const { instances } = job.outcome.forgotten;
    return `${counted(instances, "event")} would be forgotten.`;
  }

  async function submit() {
    const isFit = methods.find((one) => one.name === method.value).kind === "fit";
    let params;
    try {
      params = form.values();
    } catch (error) {
      fill(parts.said, h("p", { class: "worry" }, error.message));
      return null;
    }
    const asked = { model, method: method.value, params };
    if (isFit) Object.assign(asked, { data: data.value, activate: activate.value });
    let pressed = performance.now();
    await attempt(parts.said, async () => {
      const isWanted = isFit || (await isMeant(method.value, params));
      pressed = performance.now(); // in the dialog
      if (!isWanted) return;
      const what = JSON.stringify(asked);
      if (unsure?.what !== what) unsure = { what, key: newKey() };
      const job = await post("jobs", asked, { signal, headers: { "Idempotency-Key": unsure.key } });
      unsure = null;
      fill(parts.said, h("p", { class: "better" }, `Submitted: ${job.method}. It is in the list of jobs below.`));
      started(job);
    });
    return pressed;
  }

  return element;
}
