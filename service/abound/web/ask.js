// To review: label the stored instances that a person should see first, one by one.

import { announce, card, empty, fill, h } from "./dom.js";
import { rankedLabels } from "./answer.js";
import { get, modelPath, part } from "./api.js";
import { count, counted, legible, score } from "./format.js";
import { keepNames, spoken } from "./names.js";
import { teaching } from "./teach.js";

const ASKED = 100; // the most that the service lists
const READ = 1000; // the newest ones, which the service ranks
const MOST_FEATURES = 40;

export function show(root, context) {
  const { model, signal, attempt, lacks } = context;
  const kept = `abound-skipped-${model}`;
  const skipped = new Set(JSON.parse(sessionStorage.getItem(kept) ?? "[]"));
  const parts = { asked: h("div", { class: "stack" }), ranks: h("div", { class: "stack" }), teach: h("div", { class: "stack", hidden: true }) };
  let queue = [];
  let [nSkipped, left, last] = [0, 0, null]; // last: learned last; if that is undone, its text is asked again, since it is remembered no more
  fill(root, card("Which labels are right?", parts.asked, h("div", { class: "halves" }, parts.ranks, parts.teach)));
  const lacking = lacks("classify", "To see remembered instances") ?? lacks("learn", "To label instances");
  if (lacking) {
    fill(parts.asked, h("p", { class: "note" }, lacking));
    return;
  }
  const lesson = teaching(context, {
    marks: { chosen: new Map(), rejected: new Set(), corrects: null },
    read,
    kept: () => ({ text: queue[0].text }),
    ranked: () => queue[0]?.labels ?? [],
    place: parts.ranks,
    learned() { last = queue.shift(); left -= 1; return next(); },
    undone() { queue.unshift(last); left += 1; return next(); },
  });
  const keys = h("span", { class: "hint" }, "Keys: 1 to 9 mark, with Shift as wrong; Enter learns, S skips.");
  fill(parts.teach, lesson.element, h("div", { class: "row" }, h("button", { onclick: skip }, "Skip"), keys));
  document.addEventListener("keydown", press, { signal });
  next();

  function next() {
    return attempt(parts.asked, async () => {
      if (queue.length === 0) {
        const { instances, waiting } = await get(`${modelPath(model)}/uncertain?limit=${ASKED}`, { signal });
        queue = instances.filter((one) => !skipped.has(one.id));
        nSkipped = instances.length - queue.length;
        left = waiting === READ ? waiting : waiting - nSkipped;
        keepNames(model, queue.flatMap((one) => one.labels));
      }
      draw();
    });
  }

  /** Return the instance as it is learned: the remembered one, or what was learned and undone. */
  function read() {
    if (queue.length === 0) return null;
    if (queue[0] !== last) return { prediction: queue[0].id };
    return last.text ? { text: last.text } : { features: last.features };
  }

  function draw() {
    const [one] = queue;
    parts.ranks.hidden = one === undefined;
    parts.teach.hidden = one === undefined && !parts.teach.querySelector(".better"); // what was learned last can be undone
    if (one === undefined) {
      const again = h("button", { onclick: () => { skipped.clear(); keep(); next(); } }, "Ask the skipped ones");
      fill(parts.asked, nSkipped
        ? empty("Nothing else to ask.", `You skipped ${counted(nSkipped, "instance")}. `, again)
        : empty("Nothing to review.", "Put a file into the queue under ", h("a", { href: `#files/${part(model)}` }, "Files"), ", or send ", h("code", {}, '"remember": true'), " with a request to /classify. Those to ask about come first."));
      return;
    }
    const names = Object.keys(one.features);
    const more = names.length > MOST_FEATURES ? ` … ${names.length - MOST_FEATURES} more` : "";
    const shown = textOf(one.text) ?? `${names.slice(0, MOST_FEATURES).map(legible).join(" ")}${more}`;
    const untold = one.text ? "" : " It has no text: these are its features.";
    fill(parts.asked,
      h("p", { class: "hint" }, `${count(left)}${left === READ ? " or more" : ""} left. ${why(one)}${untold}`),
      h("p", { class: "instance break", dir: "auto", tabindex: "0", role: "region", "aria-label": "Instance" }, shown),
    );
    fill(parts.ranks, rankedLabels({ model, labels: one.labels, marks: { ...lesson, toggle: pick } }));
    announce(`Instance: ${shown}. ${one.labels.map(({ label }, at) => `${at + 1}: ${spoken(model, label)}`).join(", ")}.`);
  }

  function pick(label, event) {
    lesson.toggle(label);
    if (event.detail > 0) event.currentTarget.blur(); // clicked with a mouse: Enter learns
  }

  function press(event) {
    if (queue.length === 0 || document.querySelector("dialog[open]")) return;
    if (event.ctrlKey || event.metaKey) {
      if (event.key === "Enter") lesson.teach();
      return;
    }
    if (event.altKey || event.target.matches("input, textarea, select, a")) return;
    const [, digit] = /^Digit([1-9])$/.exec(event.code) ?? /^([1-9])$/.exec(event.key) ?? [];
    const one = queue[0].labels[Number(digit) - 1];
    if (one) (event.shiftKey ? lesson.reject : lesson.toggle)(one.label);
    else if (event.key === "Enter" && !event.target.matches("button")) lesson.teach();
    else if (event.key.toLowerCase() === "s") skip();
  }

  function keep() {
    sessionStorage.setItem(kept, JSON.stringify([...skipped]));
  }

  function skip() {
    if (queue.length === 0) return;
    skipped.add(queue.shift().id);
    left -= 1;
    lesson.clear();
    keep();
    next();
  }
}

/** Say why an instance is asked about. */
function why({ decision, audit, margin }) {
  if (decision === null) return `The best two labels differ by ${score(margin)}.`;
  if (decision === "defer") return "The model defers it.";
  return `The model ${decision === "none" ? "says that no label fits" : "would answer"}${audit ? ", and this is to be audited" : ""}.`;
}

/** A text, or the texts of named fields with their names. */
function textOf(text) {
  return text && typeof text === "object" ? Object.entries(text).filter(([, said]) => said).map(([name, said]) => `${name}: ${said}`).join("\n") : text;
}
