// The frame of the page: which view of which model is shown, and with which key.

import { announce, debounced, empty, field, fill, h, refill } from "./dom.js";
import { events, get, key, part, Problem } from "./api.js";
import * as asking from "./ask.js";
import * as datasets from "./datasets.js";
import * as eventsView from "./events.js";
import * as files from "./files.js";
import * as keys from "./keys.js";
import * as labels from "./labels.js";
import * as modelsView from "./models.js";
import * as overview from "./overview.js";
import * as tryit from "./try.js";
import * as work from "./versions.js";
import { duration } from "./format.js";

const VIEWS = {
  overview: { title: "Overview", show: overview.show },
  try: { title: "Try it", show: tryit.show },
  ask: { title: "To review", show: asking.show },
  events: { title: "Events", show: eventsView.show },
  files: { title: "Files", show: files.show },
  labels: { title: "Labels", show: labels.show },
  versions: { title: "Versions and jobs", show: work.show },
  datasets: { title: "Data sets", show: datasets.show },
  models: { title: "Models", show: modelsView.show },
  keys: { title: "Keys and audit", show: keys.show },
};

const HEALTH_MS = 10_000;
const AGAIN_SECONDS = 1;
const LAST = "abound.model"; // the model that was shown last
const KEYLESS = ["This service asks for a key.", "Give one with the button Key above."];
const view = document.getElementById("view");
const chooser = /** @type {HTMLSelectElement} */ (document.getElementById("model"));
const links = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".views a")]);
let shown = new AbortController();
let models = [];
let asksForKeys = null; // unknown yet

/** Return the view, the model and the text that the address names: `#labels/default`, `#try/default/a text`. */
function place() {
  const [name, model, text] = location.hash.slice(1).split("/").map(decoded);
  return { name: Object.hasOwn(VIEWS, name) ? name : "overview", model: model || null, text: text ?? "" };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

/** Show a problem in the words of the service. */
export function problem(error) {
  if (error.name === "AbortError") return null;
  if (!(error instanceof Problem)) throw error;
  const said = error.said;
  const facts = [said.field && `field ${said.field}`, said.retry_after && `again in ${said.retry_after} s`, said.request_id && `request ${said.request_id}`];
  const told = facts.filter(Boolean).join(" · ");
  const other = "The key in use does not allow this. Another one can be given with the button Key above.";
  return h("div", { class: "problem", role: "alert", "data-said": `${error.title} ${error.message}` },
    h("p", { class: "problem-title" }, error.title),
    h("p", {}, error.message),
    error.status === 403 && h("p", {}, other),
    told && h("p", { class: "hint" }, told),
  );
}

/** `attempt(element, work)`: do something; show the problem in the element if it fails while the view is shown. */
const attempt = (signal) => async (element, work) => {
  try {
    await work();
  } catch (error) {
    if (!signal.aborted) refill(element, problem(error));
  }
};

/** Show the view that the address names. */
async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  try {
    await draw(signal);
  } finally {
    if (!signal.aborted) view.inert = false;
  }
}

async function draw(signal) {
  const { name, model: named } = place();
  const { title } = VIEWS[name];
  document.getElementById("title").textContent = title;
  document.title = `${title}${named ? ` · ${named}` : ""} · Abound`;
  if (named !== null) mark(name, named); // before the answer, so that links to other views keep the model
  if (key.get() === null) {
    if (asksForKeys === null) await tellHealth();
    if (signal.aborted) return;
    if (asksForKeys) {
      events.dispatchEvent(new Event("key"));
      fill(view, empty(...KEYLESS));
      return;
    }
  }
  let refused, lacks;
  try {
    const answer = await get("models", { signal });
    models = answer.models;
    refused = refusal(answer.key);
    lacks = lackOf(answer.key);
  } catch (error) {
    if (signal.aborted) return;
    if (error.isAboutKey) fill(view, empty(...KEYLESS));
    else refill(view, problem(error));
    if (error.isPassing) again(signal, Math.max(AGAIN_SECONDS, error.said.retry_after ?? 0));
    return;
  }
  const model = choose();
  const { model: wanted } = place();
  if (wanted !== null && model !== wanted) {
    refill(view, problem(missing(wanted, refused)));
    again(signal, AGAIN_SECONDS); // a replica may know a new model a moment later than the one that made it
    return;
  }
  if (model === null) {
    fill(view, empty("There is no model that this key is for.", "Ask your administrator for a key."));
    return;
  }
  mark(name, model);
  document.title = `${title} · ${model} · Abound`;
  localStorage.setItem(LAST, model);
  const closed = { ask: lacks("classify", "") ?? lacks("learn", ""), datasets: refused, keys: refused }; // such views only say no
  for (const link of links) link.hidden = Boolean(closed[viewOf(link)]) && viewOf(link) !== name;
  const root = h("div", { class: `view ${name}` });
  fill(view, root);
  VIEWS[name].show(root, { model, about: models.find((one) => one.name === model), text: place().text, signal, problem, attempt: attempt(signal), refused, lacks, every: every(signal), again: show });
}

/** Show the view again after some seconds, unless another one is opened before. */
const again = (signal, seconds) => setTimeout(() => signal.aborted || show(), 1000 * seconds);

/** Say that the model of the address does not exist. Showing another model instead could lead to wrong labels there. */
function missing(name, isLimited) {
  const detail = `There is no model “${name}”${isLimited ? " that this key is for" : ""}.${models.length ? " Choose another one above." : ""}`;
  return new Problem({ title: "No such model", detail, status: 404, type: "/problems/unknown-model" });
}

/** Return why this key cannot use jobs and data sets; null if it can, or if the service needs no key. */
function refusal(rights) {
  if (!rights || (rights.scopes.includes("admin") && rights.all_models)) return null;
  const detail = "This takes a key with the scope admin, not limited to models";
  return new Problem({ title: "Not with this key", detail, status: 403, type: "/problems/forbidden" });
}

/** `lacks(scope, what)`: return a sentence if the key lacks the scope for `what`, else null. */
function lackOf(rights) {
  return (scope, what) =>
    !rights || rights.scopes.includes(scope) || rights.scopes.includes("admin")
      ? null
      : `${what} takes a key with the scope ${scope}: another one can be given with the button Key above.`;
}

/** Return the model of the address, the first model without one, or null if it does not exist; select it in the chooser. */
function choose() {
  const names = models.map((one) => one.name);
  const wanted = place().model ?? [localStorage.getItem(LAST), "default"].find((one) => names.includes(one)) ?? names[0] ?? null;
  const model = names.includes(wanted) ? wanted : null;
  const offered = [...chooser.options].map((one) => one.value);
  if (String(offered) !== String(names)) fill(chooser, names.map((name) => h("option", { value: name }, name))); // an open list stays open
  chooser.value = model ?? ""; // select none if the model does not exist
  document.getElementById("chooser").hidden = names.length === 0;
  return model;
}

/** The view that a link of the head opens. */
const viewOf = (link) => link.getAttribute("href").slice(1).split("/")[0];

function mark(name, model) {
  for (const link of links) {
    const own = viewOf(link);
    link.setAttribute("href", `#${own}/${part(model)}`);
    if (own === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
}

/** Do something now and every `ms`, while the page is visible and the view is shown. */
function every(signal) {
  return (ms, work) => {
    let timer = 0;
    const round = async () => {
      clearTimeout(timer);
      if (signal.aborted) return;
      if (!document.hidden) await work();
      if (!signal.aborted) timer = setTimeout(round, ms);
    };
    signal.addEventListener("abort", () => clearTimeout(timer));
    document.addEventListener("visibilitychange", () => document.hidden || round(), { signal });
    return round();
  };
}

let isPutOff = false;

function askForKey(isRefused) {
  document.getElementById("key").hidden = false;
  if (document.querySelector("dialog[open]")) return;
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, maxlength: "200" });
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "key-title" },
    h("h2", { id: "key-title" }, isRefused ? "This key does not open the service" : "A key, please"),
    h("form", { method: "dialog" },
      field("Key", input, "It stays in this tab, until the tab is closed. A key that may read shows; learning needs the scope learn, jobs and versions the scope admin."),
      h("div", { class: "row end" },
        key.get() === null ? null : h("button", { class: "quiet danger", onclick: () => { key.forget(); dialog.close("not now"); } }, "Sign out"),
        h("button", { class: "quiet", onclick: () => dialog.close("not now") }, "Not now"),
        h("button", { type: "submit", class: "primary", value: "given" }, "Use it"),
      ),
    ),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    isPutOff = dialog.returnValue !== "given";
    const given = input.value.trim();
    if (dialog.returnValue !== "given" || !given) return key.get() === null && show();
    if (!/^[!-~]+$/.test(given)) announce("A key has no such characters.");
    else key.set(given);
    show();
  });
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

async function tellHealth() {
  const line = document.getElementById("health");
  try {
    const health = await get("readyz");
    asksForKeys = health.keys;
    line.className = health.log === "connected" ? "" : "worry";
    line.textContent =
      health.log === "connected"
        ? `Ready, connected to the log${health.durability?.warning ? `. ${health.durability.warning}` : ""}`
        : `Cut off from the log for ${duration(health.since ?? 0)}: answers come from memory, nothing can be learned.`;
  } catch (error) {
    line.className = "worry";
    line.textContent = `${error.title}: ${error.message}`;
  }
}

chooser.addEventListener("change", () => {
  location.hash = `${place().name}/${part(chooser.value)}`;
});
addEventListener("hashchange", () => {
  isPutOff = false;
  view.inert = true; // input into the former view would be lost
  show();
  document.getElementById("main").focus({ preventScroll: true });
});
document.getElementById("key").hidden = key.get() === null;
document.getElementById("key").addEventListener("click", () => askForKey(false));
// After "Not now", periodic requests do not ask for the key again until the user opens another view.
events.addEventListener("key", debounced(() => isPutOff || askForKey(key.get() !== null), 50));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
show();
if (key.get() !== null) tellHealth(); // without a key, the view waits for it
setInterval(() => document.hidden || tellHealth(), HEALTH_MS);
