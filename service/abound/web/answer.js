// The answer of a model: its ranked labels with their marks, what was decided, and what the figures mean.

import { empty, h, term } from "./dom.js";
import { chance, counted, score } from "./format.js";
import { labelled, spoken, spokenAll } from "./names.js";

const FEW_EVENTS = 300; // probabilities are rough until then
const MOST_CANDIDATES = 8;

/** Whether the live index of a model has probabilities. */
export const isCalibrated = ({ config }) => Boolean(config.calibrate || config.decide);

/**
 * An answer as elements. `answer`: what `/classify` returned, with the labels that it would apply (`applied`), whether a
 * least probability was asked for (`isLimited`), and whether the marked labels changed the order (`isGiven`); `marks`,
 * `choose`, `explained`, `before`: as for `rankedLabels`. Without `marks`, nothing can be taught.
 */
export function rankedAnswer({ model, about, answer, marks, ...rest }) {
  const { labels, version, offset, isLimited } = answer;
  if (labels.length === 0) {
    const [title, next] = isLimited
      ? ["No label is as probable as that.", null]
      : ["No label has any of these features.", marks ? "Name the right one, and press Learn." : null];
    return [decided(model, answer), empty(title, next)];
  }
  const teach = "Mark the right labels, also with the keys 1 to 9, or wrong ones, then press Learn.";
  const by = version === "live" ? "the live index" : `version ${version}`;
  return [
    decided(model, answer),
    rankedLabels({ model, labels, marks, ...rest }),
    marks ? h("p", { class: "hint" }, teach) : null,
    h("p", { class: "hint" }, meaning(about, answer)),
    h("p", { class: "hint" }, `By ${by}, with all events up to `, term("offset"), ` ${offset}.`),
  ];
}

/**
 * Ranked labels as a list. `marks`: `{isRight, isWrong, toggle, reject}`, or null; `choose(label)` explains the label
 * `explained`, or without it, a click on a label marks it; `before`: the labels of the former answer, or null.
 */
export function rankedLabels({ model, labels, marks, choose = null, explained = null, before = null }) {
  const whole = Math.max(...labels.map((one) => one.score), 1); // a bar is full at a score of 1 or more
  return h("ol", { class: "ranks" }, labels.map((one, at) => {
    const { label, probability } = one;
    const [name, , id] = labelled(model, label);
    const filling = h("i", {});
    filling.style.width = `${100 * (probability ?? Math.max(0, one.score / whole))}%`;
    const mark = (kind, isOn, onclick) => ({ class: kind, "aria-pressed": String(isOn), "data-label": label, onclick });
    const right = (kind) => mark(kind, marks.isRight(label), (event) => marks.toggle(label, event));
    const wrong = () => mark("small quiet wrong", marks.isWrong(label), () => marks.reject(label));
    const names = { right: `${spoken(model, label)} is right`, wrong: `${spoken(model, label)} is not right` };
    const tick = ["✓", h("span", { class: "word" }, " Right")];
    return h("li", {},
      h("button",
        { "data-said": label, ...(choose ? mark("rank", one === explained, () => choose(label)) : right("rank right")) },
        filling,
        h("span", { class: "place" }, `${at + 1}.`),
        h("span", { class: "named" }, name, " ", moved(before, label, at), id),
        h("span", { class: "score" }, isNumber(probability) ? probable(probability) : null, score(one.score)),
      ),
      choose && marks && h("button", { "aria-label": names.right, ...right("small quiet right") }, tick),
      marks && h("button", { title: "Not this", "aria-label": names.wrong, ...wrong() }, "✗"),
    );
  }));
}

const isNumber = (value) => typeof value === "number";

/** A probability before a score; who listens hears which is which. */
const probable = (p) => [
  h("span", { class: "unseen" }, "probability "),
  h("b", { class: "probability" }, chance(p)),
  h("span", { class: "unseen" }, ", score"),
  " ",
];

/** Return how a label has moved since the former answer. */
function moved(before, label, at) {
  const was = before?.indexOf(label) ?? at;
  if (was === at) return null;
  if (was < 0) return h("span", { class: "moved better" }, "new");
  return h("span", { class: `moved ${was > at ? "better" : "hint"}` }, was > at ? `up ${was - at}` : `down ${at - was}`);
}

/** Say what a model with `decide` has decided. */
function decided(model, { decision, audit, applied, candidates = [], reachable = true }) {
  if (!decision) return null;
  const more = candidates.length > MOST_CANDIDATES ? ` and ${candidates.length - MOST_CANDIDATES} more` : "";
  const likely = `if a label fits, it is probably one of ${spokenAll(model, candidates.slice(0, MOST_CANDIDATES))}${more}.`;
  const [title, said] = {
    answer: ["Answer", `${spokenAll(model, applied)} may be applied without a person.`],
    defer: ["Ask a person", candidates.length ? likely : "the model is not sure enough."],
    none: ["None of the labels", "no label fits, or one that the model does not know."],
  }[decision];
  return h("p", { class: "decision break" },
    h("strong", {}, title),
    `: ${said}`,
    reachable ? null : " Even the best 50 labels have a right one less often than the model aims at.",
    audit ? " This one belongs to the audited share: teach its true label, too." : null,
  );
}

/** Say what the figures beside labels are. */
function meaning(about, { labels, version, isGiven }) {
  if (isNumber(labels[0].probability)) {
    const rough = about.learned < FEW_EVENTS ? ` It is rough: it rests on ${counted(about.learned, "event")}.` : "";
    const given = isGiven ? " Labels without one are ranked given those that you marked." : "";
    return `The percentage is the probability that a label is right; the score stands beside it.${rough}${given}`;
  }
  if (!isCalibrated(about)) return "A score is not a probability: turn on calibration under Models to get one.";
  if (version === "live") return "A score is not a probability.";
  return "Only the live index has probabilities: choose it under “Ranked by”.";
}
