// The labels that a model knows: search by a part of the name, how often each was learned, and its features.

import { announce, breakable, card, debounced, empty, field, fill, h, named } from "./dom.js";
import { get, modelPath, part } from "./api.js";
import { bars } from "./charts.js";
import { count, counted, legible, score } from "./format.js";

const PAGE = 50;
const MOST_BARS = 20;

export function show(root, { model, signal, problem }) {
  const search = h("input", { type: "search", maxlength: "512", autocomplete: "off", spellcheck: "false" });
  const parts = { found: h("div", { class: "stack" }), about: h("div", { class: "stack" }) };
  const chart = bars({
    title: "Features that point to it",
    sideways: true,
    rowHeight: 26,
    caption: "What a feature adds to the label's score when an instance has it alone, with the value 1.",
    x: { title: "weight", format: (n) => score(n), zero: true },
    y: { names: true },
  });
  let asked = 0;
  let shown = [];
  let total = 0;
  let chosen = null;

  fill(
    root,
    h(
      "div",
      { class: "halves" },
      card("Labels", field("Contains", search), parts.found),
      card("What points to it", parts.about),
    ),
  );
  fill(parts.about, empty("No label chosen.", "Choose one of the list."));
  search.addEventListener("input", debounced(() => find(), 150));
  find();

  async function find(isMore = false) {
    const number = (asked += 1);
    const begin = isMore ? shown.length : 0;
    try {
      const answer = await get(`${modelPath(model)}/labels?limit=${PAGE}&offset=${begin}&contains=${part(search.value)}`, { signal });
      if (number !== asked) return;
      const rows = answer.labels.map((name, at) => ({ name, learned: answer.learned?.[at], called: answer.details?.[name]?.name }));
      shown = isMore ? [...shown, ...rows] : rows;
      total = answer.total;
      draw(isMore ? begin : null);
    } catch (error) {
      if (number === asked && !signal.aborted) fill(parts.found, problem(error));
    }
  }

  function draw(first = null) {
    if (shown.length === 0) {
      fill(parts.found, search.value ? empty("No label has that in it.", "Capitals do not count.") : empty("This model knows no labels yet.", "They come with what is learned; nothing is declared before."));
      announce("No label found.");
      return;
    }
    fill(
      parts.found,
      h("p", { class: "hint" }, `${counted(total, "label")}, in the order in which they were first seen.`),
      h("ul", { class: "ranks long", "aria-label": "Labels" }, shown.map(({ name, learned, called }) =>
        h("li", {}, h(
          "button",
          { type: "button", class: "rank label", "aria-pressed": String(name === chosen), "data-label": name, onclick: () => choose(name) },
          h("span", { class: "name", title: legible(name) }, breakable(legible(name)), called ? h("span", { class: "hint" }, ` ${legible(called)}`) : null),
          h("span", { class: "score" }, learned === undefined ? "" : `learned ${count(learned)}×`),
        )),
      )),
      shown.length < total ? h("button", { type: "button", onclick: () => find(true) }, "Show more") : null,
    );
    if (first !== null) parts.found.querySelectorAll(".label")[first]?.focus();
    else announce(`${counted(total, "label")}.`);
  }

  async function choose(name) {
    chosen = name;
    for (const one of parts.found.querySelectorAll(".label")) one.setAttribute("aria-pressed", String(one.dataset.label === name));
    try {
      const about = await get(`${modelPath(model)}/label?name=${part(name)}&limit=100`, { signal });
      if (chosen === name) explain(about);
    } catch (error) {
      if (chosen === name && !signal.aborted) fill(parts.about, problem(error));
    }
  }

  function explain(about) {
    const label = legible(about.label);
    const head = h("p", {}, h("strong", { class: "break clamped", title: label }, breakable(label)), ` was learned ${counted(about.learned, "time")}. `, `${counted(about.total, "feature votes", "features vote")} on it.`);
    const { name, description, parent, metadata } = about.details ?? {};
    const facts = Object.entries({ name, description, parent }).filter(([, value]) => value);
    facts.push(...Object.entries(metadata ?? {}).map(([key, value]) => [legible(key), typeof value === "string" ? value : JSON.stringify(value)]));
    const list = facts.length ? h("dl", { class: "facts" }, facts.flatMap(([fact, value]) => [h("dt", {}, fact), h("dd", {}, breakable(legible(value)))])) : null;
    announce(`${label}: learned ${counted(about.learned, "time")}, ${counted(about.total, "feature")}.`);
    if (about.features.length === 0) {
      fill(parts.about, head, list, empty("No feature points to it any more.", "Weak connections are dropped as others grow; it comes back when it is learned again."));
      return;
    }
    const top = about.features.slice(0, MOST_BARS);
    fill(parts.about, head, list, chart.element);
    chart.set({
      names: top.map((one) => legible(one.feature)),
      series: [{ name: "weight", colour: "accent", values: top.map((one) => one.weight) }],
      said: `Features that point to ${label}: ${top.map((one) => `${legible(one.feature)} ${score(one.weight)}`).join(", ")}.`,
      columns: ["feature", "#weight"],
      rows: about.features.map((one) => [named(one.feature), score(one.weight)]),
    });
  }
}
