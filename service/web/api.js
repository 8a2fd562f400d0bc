// The service over HTTP: relative addresses, every request on its own, the key from this tab's session only.

const KEY = "abound.key";

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

  /** Whether the service has no such route. */
  get isMissing() {
    return this.status === 404 && this.type === "/problems/unknown-path";
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
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
    said = { title: "An answer that is none of the service's", detail: `HTTP ${status}`, status, type: "about:blank" };
  }
  const problem = new Problem({ ...said, status });
  if (problem.isAboutKey) events.dispatchEvent(new Event("key"));
  return problem;
}

async function send(method, path, options) {
  try {
    return await fetch(new URL(path, document.baseURI), { cache: "no-store", ...options, method });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const detail = "The service cannot be reached.";
    throw new Problem({ title: "No answer", detail, status: 0, type: "about:blank" });
  }
}

/** Return a new random idempotency key. */
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");

/** Return an answer as JSON; throw Problem for an error. */
export async function ask(method, path, { body, signal, headers: more = {} } = {}) {
  const headers = headersFor(body === undefined ? more : { ...more, "Content-Type": "application/json" });
  const answer = await send(method, path, {
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  if (!answer.ok) throw problemOf(answer.status, text);
  return text ? JSON.parse(text) : null;
}

export const get = (path, options) => ask("GET", path, options);
export const post = (path, body, options) => ask("POST", path, { ...options, body });

/** Follow server-sent events until `ended`; reconnect when the connection is lost. */
export async function follow(path, take, signal) {
  for (;;) {
    const answer = await send("GET", path, { headers: headersFor({ Accept: "text/event-stream" }), signal });
    if (!answer.ok) throw problemOf(answer.status, await answer.text());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (!event.data) continue;
        take(JSON.parse(event.data));
        if (event.event === "ended") return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
    if (signal.aborted) return;
  }
}

function parsed(block) {
  const event = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) || [];
    if (name === "data") event.data += value;
    else if (name === "event") event.event = value;
  }
  return event;
}

/** Save an answer as a file. A plain link would not send the key. */
export async function download(path, name, signal) {
  const answer = await send("GET", path, { headers: headersFor(), signal });
  if (!answer.ok) throw problemOf(answer.status, await answer.text());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
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
    request.addEventListener("load", () => {
      if (request.status >= 200 && request.status < 300) resolve(JSON.parse(request.responseText || "null"));
      else reject(problemOf(request.status, request.responseText));
    });
    request.addEventListener("error", () =>
      reject(new Problem({ title: "No answer", detail: "The connection broke off.", status: 0, type: "about:blank" })),
    );
    request.addEventListener("abort", () => reject(new DOMException("given up", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
