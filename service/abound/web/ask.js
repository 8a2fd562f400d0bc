// Ask me: label the stored instances that the model is least certain of, one by one.

import { announce, breakable, card, empty, fill, h } from "./dom.js";
import { get, modelPath, newKey, part, post } from "./api.js";
import { labelChips } from "./chips.js";
import { count, legible, score } from "./format.js";

const ASKED = 20;
const MOST_ASKED = 100; // the most that the service lists
const MOST_FEATURES = 40;

export function show(root, { model, signal, problem, lacks }) {
  const parts = { asked: h("div", { class: "stack" }), said: h("div", { class: "stack", role: "status" }) };
  const kept = `abound-skipped-${model}`;
  const skipped = new Set(JSON.parse(sessionStorage.getItem(kept) ?? "[]"));
  let queue = [];
  let nSkipped = 0;
  let chips = null;
  let isBusy = false;
  fill(root, card("Which labels are right?", parts.asked, parts.said));
  const lacking = lacks("admin", "To see remembered instances");
  if (lacking) {
    fill(parts.asked, h("p", { class: "note" }, lacking));
    return;
  }
  document.addEventListener("keydown", press, { signal });
  next();

  async function next() {
    try {
      if (queue.length === 0) {
        const limit = Math.min(MOST_ASKED, ASKED + skipped.size);
        const { instances } = await get(`${modelPath(model)}/uncertain?limit=${limit}`, { signal });
        queue = instances.filter((one) => !skipped.has(one.id));
        nSkipped = instances.length - queue.length;
      }
      draw();
    } catch (error) {
      if (!signal.aborted) fill(parts.asked, problem(error));
    }
  }

  function draw() {
    const [one] = queue;
    const typing = parts.asked.contains(document.activeElement) && document.activeElement.matches("input");
    if (one === undefined && nSkipped > 0) {
      const again = h("button", { type: "button", onclick: () => { skipped.clear(); keep(); next(); } }, "Ask the skipped ones");
      fill(parts.asked, empty("Nothing else to ask.", `You skipped ${count(nSkipped)}. `, again));
      return;
    }
    if (one === undefined) {
      fill(parts.asked, empty("Nothing to ask.", "Send ", h("code", {}, '"remember": true'), " with a request to /classify, and the least certain instances come here."));
      return;
    }
    chips = labelChips("Other labels", { suggest: (prefix) => get(`${modelPath(model)}/labels?limit=20&prefix=${part(prefix)}`, { signal }), changed: mark });
    const names = Object.keys(one.features);
    fill(
      parts.asked,
      h("p", { class: "hint" }, `Least certain first: the best two labels differ by ${score(one.margin)}. The order of words is not kept.`),
      h("p", { class: "instance break" }, names.slice(0, MOST_FEATURES).map(legible).join(" "), names.length > MOST_FEATURES ? ` … ${count(names.length - MOST_FEATURES)} more` : ""),
      h("ol", { class: "ranks" }, one.labels.map(({ label, score: value }, at) => h(
        "li",
        {},
        h(
          "button",
          { type: "button", class: "rank right", "data-label": label, "aria-pressed": "false", onclick: (event) => pick(event, label) },
          h("span", { class: "place" }, `${at + 1}.`),
          h("span", { class: "name" }, breakable(legible(label))),
          h("span", { class: "score" }, score(value)),
        ),
      ))),
      h(
        "form",
        { class: "stack", onsubmit: (event) => { event.preventDefault(); learn(); } },
        chips.element,
        h("div", { class: "row" }, h("button", { class: "primary" }, "Learn"), h("button", { type: "button", onclick: skip }, "Skip"), h("span", { class: "hint" }, "Keys: 1 to 9 mark, Enter learns, S skips.")),
      ),
    );
    if (typing) chips.element.querySelector("input").focus(); // else the next keys typed would be taken for S or digits
    announce(`Instance: ${names.slice(0, MOST_FEATURES).map(legible).join(" ")}. ${one.labels.map(({ label }, at) => `${at + 1}: ${legible(label)}`).join(", ")}.`);
  }

  function pick(event, label) {
    chips.toggle(label);
    if (event.detail > 0) event.currentTarget.blur(); // clicked with a mouse: Enter learns
  }

  function mark() {
    for (const one of parts.asked.querySelectorAll(".right")) one.setAttribute("aria-pressed", String(chips.has(one.dataset.label)));
  }

  function press(event) {
    if (queue.length === 0 || document.querySelector("dialog[open]")) return;
    if (event.ctrlKey || event.metaKey) {
      if (event.key === "Enter") learn();
      return;
    }
    if (event.altKey || event.target.matches("input, textarea, select, a")) return;
    if (/^[1-9]$/.test(event.key)) {
      const one = queue[0].labels[event.key - 1];
      if (one) chips.toggle(one.label);
    } else if (event.key === "Enter" && !event.target.matches("button")) learn();
    else if (event.key.toLowerCase() === "s") skip();
  }

  function keep() {
    sessionStorage.setItem(kept, JSON.stringify([...skipped]));
  }

  function skip() {
    if (isBusy || queue.length === 0) return;
    skipped.add(queue.shift().id);
    keep();
    next();
  }

  async function learn() {
    if (isBusy || queue.length === 0) return;
    const labels = chips.take();
    if (labels.length === 0) {
      fill(parts.said, h("p", { class: "worry" }, "Mark or name a label first."));
      return;
    }
    isBusy = true;
    const [one] = queue;
    one.key ??= newKey(); // a retry after a lost answer is learned once
    try {
      await post(`${modelPath(model)}/learn`, { prediction: one.id, labels, source: "page" }, { signal, headers: { "Idempotency-Key": one.key } });
      fill(parts.said, h("p", { class: "better" }, "Learned ", breakable(labels.map((label) => `“${legible(label)}”`).join(", ")), "."));
      queue.shift();
      await next();
    } catch (error) {
      if (!signal.aborted) fill(parts.said, problem(error));
    } finally {
      isBusy = false;
    }
  }
}
