// Data sets: files that jobs can learn from instead of history.

import { announce, breakable, card, confirmed, empty, fill, h, refill, table } from "./dom.js";
import { ask, get, part } from "./api.js";
import { bytes, count, counted, legible, when } from "./format.js";

const CUT = 200;

const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const shortened = (text) => (text.length > CUT ? `${text.slice(0, CUT)}…` : text);

export function show(root, { model, signal, problem, attempt, refused }) {
  const parts = { said: h("div", { role: "status" }), list: h("div", { class: "stack" }), rows: h("div", { class: "stack" }) };
  fill(root, card("Data sets", parts.said, parts.list));
  if (refused) fill(parts.list, h("p", { class: "note" }, `${refused.message}.`));
  else list();

  async function list() {
    try {
      const { datasets } = await get("datasets", { signal });
      if (datasets.length === 0) {
        fill(parts.list, empty("No data sets yet.", h("a", { href: `#files/${part(model)}` }, "Choose a file"), " and keep it as a data set; a job can then be fitted on it."));
        return;
      }
      refill(parts.list,
        table("All data sets", ["name", "#instances", "#features", "#labels", "#size", "created", ""],
          datasets.map((one) => [
            h("strong", { class: "break" }, breakable(one.name)),
            count(one.instances),
            count(one.features),
            count(one.classes),
            bytes(one.bytes),
            h("span", { class: "whole" }, when(one.created)),
            h("div", { class: "row end" },
              h("a", { href: `#versions/${part(model)}/${part(one.name)}`, class: "whole" }, "Fit a job"),
              h("button", { class: "small", "aria-label": `Show rows of ${one.name}`, onclick: () => preview(one.name) }, "Show rows"),
              h("button", { class: "small quiet danger", "aria-label": `Delete ${one.name}`, onclick: () => remove(one.name) }, "Delete"),
            ),
          ]),
        ),
        parts.rows,
      );
    } catch (error) {
      const missing = () => empty("This service takes no data sets.", "Jobs learn from history: from what the model was taught.");
      if (!signal.aborted) fill(parts.list, error.isMissing ? missing() : problem(error));
    }
  }

  async function preview(which) {
    await attempt(parts.rows, async () => {
      const { rows } = await get(`datasets/${part(which)}/rows`, { signal });
      fill(parts.rows,
        h("h3", {}, `The first ${counted(rows.length, "row")} of `, breakable(which)),
        table(`Rows of ${which}`, ["labels", "instance"], rows.map((one) => [
          h("span", { class: "break" }, breakable(shortened(one.labels.map(legible).join(", ")))),
          h("span", { class: "break wide" }, shortened([one.text, one.features].filter(Boolean).map(plain).join(" "))),
        ])),
      );
      announce(`${counted(rows.length, "row")} of ${which}.`);
    });
  }

  async function remove(which) {
    if (!(await confirmed(`Delete ${which}?`, "Jobs that read it fail. Versions that were fitted on it stay.", "Delete it"))) return;
    await attempt(parts.said, async () => {
      await ask("DELETE", `datasets/${part(which)}`, { signal });
      announce(`The data set ${which} is deleted.`);
      await list();
    });
  }
}
