// Versions: which one serves, which ones contend and how they do, activate and roll back.

import { announce, card, confirmed, empty, fill, h, table } from "./dom.js";
import { ask, get, modelPath, part, post } from "./api.js";
import { bars } from "./charts.js";
import { bytes, count, percent, when } from "./format.js";

const REFRESH_MS = 5000;

/** The part of the view that is about versions: `element`, and `again()`, which asks anew. */
export function versions({ model, signal, problem, every }) {
  const parts = { now: h("div", {}), list: h("div", {}), contenders: h("div", {}), said: h("div", { role: "status" }) };
  const chart = bars({
    title: "Contenders on live traffic",
    caption: "Each event is ranked by all of them before it is learned; over the newest events.",
    x: { names: true },
    y: { title: "% of the events", format: (n) => `${Math.round(100 * n)} %`, zero: true, most: 1 },
  });
  const element = h(
    "div",
    { class: "view" },
    card("Serving now", parts.now, parts.said),
    card("Versions", parts.list),
    card("Contenders", parts.contenders),
  );
  let last = "";

  every(REFRESH_MS, again);

  async function again() {
    try {
      const [about, stats] = await Promise.all([get(modelPath(model), { signal }), get(`${modelPath(model)}/stats`, { signal })]);
      const found = await listed();
      const seen = JSON.stringify([about.version, about.active, stats.contenders, found]);
      if (seen === last) return;
      last = seen;
      drawNow(about, stats, found);
      drawList(about, stats, found);
      drawContenders(stats, found);
    } catch (error) {
      last = "";
      if (!signal.aborted) fill(parts.now, problem(error));
    }
  }

  /** The cards of the versions; null where this service has none. */
  async function listed() {
    try {
      return (await get(`${modelPath(model)}/versions`, { signal })).versions;
    } catch (error) {
      if (error.isMissing) return null;
      throw error;
    }
  }

  function drawNow(about, stats, found) {
    const card = (found || []).find((one) => one.id === about.version);
    const former = about.former;
    fill(
      parts.now,
      h(
        "div",
        { class: "row apart" },
        h("p", {}, h("strong", {}, nameOf(about.version, found)), card ? ` from ${when(card.created)}` : about.version === "live" ? ": it learns with every event" : ""),
        h(
          "div",
          { class: "row" },
          former && former !== about.version ? h("button", { type: "button", onclick: () => activate(former, found, "Roll back") }, `Roll back to ${nameOf(former, found)}`) : null,
          about.version === "live" ? null : h("button", { type: "button", onclick: () => activate("live", found, "Serve the index") }, "Serve the live index"),
        ),
      ),
      about.weights ? h("p", { class: "hint" }, `Mixed: live ${percent(about.weights[0])}, version ${percent(about.weights[1])}.`) : null,
    );
  }

  function drawList(about, stats, found) {
    if (found === null) {
      fill(parts.list, empty("This service makes no versions.", "It answers from the live index."));
      return;
    }
    if (found.length === 0) {
      fill(parts.list, empty("No versions yet.", "A job that fits a method makes one: start it with the form below."));
      return;
    }
    const contending = new Set((stats.contenders?.contenders || stats.contenders || []).map?.((one) => one.version) || []);
    fill(
      parts.list,
      table(
        "Versions, newest first",
        ["version", "made", "#R@1", "#R@5", "#instances", "#classes", "#size", ""],
        found.map((one) => [
          h("span", {}, h("strong", {}, one.method), " ", h("code", {}, one.id.slice(0, 8)), one.id === about.version ? h("span", { class: "tag on" }, "serving") : null),
          when(one.created),
          percent(one.metrics?.["R@1"]),
          percent(one.metrics?.["R@5"]),
          count(one.sizes?.instances),
          count(one.sizes?.classes),
          bytes(one.n_bytes ?? one.bytes),
          h(
            "div",
            { class: "row end" },
            contending.has(one.id)
              ? h("button", { type: "button", class: "small quiet", onclick: () => contend(one, false) }, "Stop contending")
              : h("button", { type: "button", class: "small quiet", "aria-label": `Let ${one.method} ${one.id.slice(0, 8)} contend`, onclick: () => contend(one, true) }, "Contend"),
            one.id === about.version ? null : h("button", { type: "button", class: "small", "aria-label": `Activate ${one.method} ${one.id.slice(0, 8)}`, onclick: () => activate(one.id, found, "Activate") }, "Activate"),
          ),
        ]),
      ),
    );
  }

  function drawContenders(stats, found) {
    const about = stats.contenders;
    const all = Array.isArray(about) ? about : about?.contenders || [];
    if (all.length === 0) {
      fill(parts.contenders, empty("Nothing contends.", "Let a version contend: it is scored on each event, and not served until it proves better."));
      return;
    }
    if (!chart.element.isConnected) fill(parts.contenders, chart.element);
    const names = all.map((one) => nameOf(one.version, found));
    const of = (one, measure) => one.window?.[measure] ?? one[measure] ?? null;
    chart.set({
      names,
      series: [
        { name: "R@1", colour: "head", values: all.map((one) => of(one, "R@1")) },
        { name: "MRR", colour: "torso", values: all.map((one) => of(one, "MRR")) },
      ],
      said: all.map((one, at) => `${names[at]}: R@1 ${percent(of(one, "R@1"))}`).join(", "),
      columns: ["version", "#events", "#R@1", "#MRR"],
      rows: all.map((one, at) => [names[at], count(one.n ?? one.window?.n), percent(of(one, "R@1")), percent(of(one, "MRR"))]),
    });
  }

  async function activate(version, found, word) {
    const name = nameOf(version, found);
    if (!(await confirmed(`${word}: ${name}?`, "All replicas go over to it at one place in the log, and answer from it from then on. It can be taken back.", word))) return;
    fill(parts.said, h("p", { class: "note" }, "The replicas get ready…"));
    try {
      await post(`${modelPath(model)}/activate`, { version }, { signal });
      fill(parts.said, h("p", { class: "better" }, `${name} serves.`));
      announce(`${name} serves.`);
      await again();
    } catch (error) {
      fill(parts.said, problem(error));
    }
  }

  async function contend(one, isIn) {
    try {
      const path = `${modelPath(model)}/contenders`;
      if (isIn) await post(path, { version: one.id }, { signal });
      else await ask("DELETE", `${path}/${part(one.id)}`, { signal });
      fill(parts.said, h("p", { class: "better" }, isIn ? `${one.method} contends: it is scored from the next event on.` : `${one.method} contends no more.`));
      await again();
    } catch (error) {
      fill(parts.said, problem(error));
    }
  }

  return { element, again };
}

function nameOf(version, found) {
  if (version === "live") return "the live index";
  if (version === "blend") return "the blend";
  const card = (found || []).find((one) => one.id === version);
  return card ? `${card.method} ${version.slice(0, 8)}` : version;
}
