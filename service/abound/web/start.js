// The card of a model that has learned nothing: its rule, and ways to begin.

import { announce, card, fill, h } from "./dom.js";
import { ask, modelPath, part, post } from "./api.js";
import { taught } from "./journal.js";
import { ruleChoice } from "./models.js";
import { QUESTION, sample } from "./sample.js";

const SAMPLE = "sample";

export function startCard({ model, about, signal, attempt, lacks }) {
  const lacking = { learn: lacks("learn", "To load the sample or teach a file"), admin: lacks("admin", "") };
  const isFixed = lacking.admin || about.classes;
  const said = h("div", { role: "status" });
  const { length } = sample().instances;
  const load = h("button", { onclick: loadSample }, `Load a sample: ${length} questions to a help desk`);
  const begin = isFixed ? "Begin" : "Choose how it ranks now: the rule is fixed after the first event. Then begin";
  return card("Nothing learned yet",
    h("p", {}, `A model learns from every labelled event that is sent to it. ${begin} in one of these ways.`),
    isFixed ? null : ruleChoice(about.config.update, configure).element,
    h("p", {}, h("a", { href: `#try/${part(model)}` }, "Try it"), ": type a text, name its label, press Learn."),
    h("p", {}, h("a", { href: `#files/${part(model)}` }, "Teach a file"), ": a table or JSON lines with texts and labels."),
    h("p", {}, "Stream a file: ", h("code", {}, "abound learn FILE")),
    lacking.learn ? h("p", { class: "note" }, lacking.learn) : null,
    lacking.admin ? null : h("div", { class: "row" }, load, h("span", { class: "hint" }, "into a model of its own, “sample”")),
    said,
  );

  function configure(update) {
    return attempt(said, async () => {
      Object.assign(about, await ask("PUT", modelPath(model), { body: { update }, signal }));
      fill(said, h("p", { class: "better" }, `The rule is ${update}.`));
    });
  }

  /** Learn the sample in a model of its own. Its idempotency key is fixed, so that it is learned once. */
  async function loadSample() {
    load.disabled = true;
    await attempt(said, async () => {
      const { incarnation } = await ask("PUT", modelPath(SAMPLE), { body: { update: "sls" }, signal });
      const headers = { "Idempotency-Key": "sample" };
      const { offset } = await post(`${modelPath(SAMPLE)}/learn`, sample(), { signal, headers });
      taught.set(incarnation, offset);
      announce(`${length} events are learned.`);
      location.hash = `try/${SAMPLE}/${part(QUESTION)}`;
    });
    load.disabled = false;
  }
}
