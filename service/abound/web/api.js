// The service over HTTP: relative addresses, every request on its own, the key from this tab's session only.

const KEY = "abound.key";
const POLL_MS = 500;

/** An error answer of the service. */
export class Problem extends Error {
  constructor(said) {
    super(said.detail || said.title);
    this.title = said.title;
    this.status = said.status;
    this.type = said.type;
    this.said = said;
  }

  /** Whether the request needs another key. */
  get isAboutKey() {
    return this.status === 401;
  }

  /** Whether the service was unavailable for a moment, so that another request may succeed. */
  get isPassing() {
    return this.status === 0 || this.status === 503;
  }

  /** Whether the service has no such route. */
  get isMissing() {
    return this.status === 404 && this.type === "/problems/unknown-path";
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export const events = new EventTarget();

/** A part of an address. */
export const part = encodeURIComponent;

/** The path of a model. */
export const modelPath = (model) => `models/${part(model)}`;

function headersFor(more = {}) {
  const shown = key.get();
  return shown ? { ...more, Authorization: `Bearer ${shown}` } : more;
}

function problemOf(status, text) {
  let said = null;
  try {
    said = JSON.parse(text);
  } catch {
    // The answer is not from the service but from a proxy in front of it.
  }
  if (!said || typeof said.title !== "string") {
    said = { title: "This answer did not come from Abound", detail: `HTTP ${status}`, status, type: "about:blank" };
  }
  const problem = new Problem({ ...said, status });
  if (problem.isAboutKey) events.dispatchEvent(new Event("key"));
  return problem;
}

/** Return a good answer as JSON; throw Problem for any other. */
function resultOf(status, text) {
  try {
    if (status >= 200 && status < 300) return text ? JSON.parse(text) : null;
  } catch {
    // The answer is a page of a proxy, such as its login form.
  }
  throw problemOf(status, text);
}

const noAnswer = (detail) => new Problem({ title: "No answer", detail, status: 0, type: "about:blank" });

/** Wait for an answer or its body; throw Problem if the connection fails. */
async function received(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error.name === "AbortError" ? error : noAnswer("The service cannot be reached.");
  }
}

const send = (method, path, options) => received(fetch(new URL(path, document.baseURI), { cache: "no-store", ...options, method }));

/** Return a new random idempotency key. */
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");

/**
 * Return an answer as JSON; throw Problem for an error.
 * @param {string} method
 * @param {string} path
 * @param {{body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} options
 */
export async function ask(method, path, { body, signal, headers: more = {} } = {}) {
  const headers = headersFor(body === undefined ? more : { ...more, "Content-Type": "application/json" });
  const answer = await send(method, path, { headers, signal, body: JSON.stringify(body) });
  return resultOf(answer.status, await received(answer.text()));
}

export const get = (path, options) => ask("GET", path, options);
export const post = (path, body, options) => ask("POST", path, { ...options, body });

const ENDED = ["succeeded", "failed", "cancelled"];
export const isOver = (job) => ENDED.includes(job.state);

/** Repeat what `next` asks for, given the job as it was, until the job has ended; `told` gets it as it proceeds. */
export async function done(next, told = (_job) => {}) {
  for (let job = await next(null); ;) {
    if (isOver(job)) return job;
    told(job);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    job = await next(job).catch((error) => {
      if (!error.isPassing) throw error;
      return job;
    });
  }
}

/** Save an answer as a file. A plain link would not send the key. */
export async function download(path, name, signal) {
  const answer = await send("GET", path, { headers: headersFor(), signal });
  if (!answer.ok) throw problemOf(answer.status, await received(answer.text()));
  saveAs(await received(answer.blob()), name);
}

export function saveAs(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Send lines of a request, and return an answer for each. Lines that are refused for now are sent again. */
export async function sendLines(path, lines, signal) {
  const answers = new Array(lines.length);
  for (let left = lines.map((_, at) => at); left.length;) {
    const body = left.map((at) => `${JSON.stringify(lines[at])}\n`).join("");
    const answer = await send("POST", path, { headers: headersFor({ "Content-Type": "application/x-ndjson" }), signal, body });
    const text = await received(answer.text());
    if (!answer.ok) throw problemOf(answer.status, text);
    const found = text.trim().split("\n").map((line) => JSON.parse(line));
    if (found.length !== left.length) throw noAnswer("The connection broke off.");
    found.forEach((one, at) => { answers[left[at]] = one; });
    left = left.filter((at) => [429, 503].includes(answers[at].status));
    if (left.length) await new Promise((resolve) => setTimeout(resolve, 1000 * (answers[left[0]].retry_after ?? 1)));
    signal.throwIfAborted();
  }
  return answers;
}

/** Upload a file; call `told` with the share that is sent, 0..1. fetch cannot report progress. */
export function upload(path, file, told, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", new URL(path, document.baseURI));
    for (const [name, value] of Object.entries(headersFor({ "Content-Type": "application/octet-stream" }))) {
      request.setRequestHeader(name, value);
    }
    request.upload.addEventListener("progress", (event) => event.lengthComputable && told(event.loaded / event.total));
    request.addEventListener("load", resolve);
    request.addEventListener("error", () => reject(noAnswer("The connection broke off.")));
    request.addEventListener("abort", () => reject(new DOMException("given up", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  }).then(({ target }) => resultOf(target.status, target.responseText));
}
