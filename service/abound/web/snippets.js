// A request as commands that can be copied: curl and Python.

import { key } from "./api.js";
import { h } from "./dom.js";

/** Return JSON as a Python literal. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** A request that was sent, as curl and Python; without `min_offset`, which only this page needs. `what`: its name. */
export function snippets(path, { min_offset: _, ...body }, what = "Request") {
  const address = new URL(path, document.baseURI).href;
  const curl = `curl ${address} ${key.get() ? '-H "Authorization: Bearer $ABOUND_KEY" ' : ""}--json '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  const headers = key.get() ? ', headers={"Authorization": f"Bearer {os.environ[\'ABOUND_KEY\']}"}' : "";
  const python = `${key.get() ? "import os\n" : ""}import httpx\n\nbody = ${literal(body)}\nprint(httpx.post("${address}", json=body${headers}).json())`;
  return h("details", {}, h("summary", {}, "As curl / Python"), [["curl", curl], ["Python", python]].map(([name, code]) =>
    h("div", { class: "snippet" }, h("div", { class: "row apart" }, h("h3", {}, name), h("button", { class: "small quiet", "aria-label": `Copy ${what} for ${name}`, onclick: () => navigator.clipboard?.writeText(code) }, "Copy")), h("pre", { tabindex: "0", role: "region", "aria-label": `${what} for ${name}` }, code))));
}
