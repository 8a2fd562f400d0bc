// Versions and jobs in one view: the active version, challengers and their scores, activate and roll back, and jobs.

import { announce, card, confirmed, empty, fill, h, pastDoubleClick, refill, table, term } from "./dom.js";
import { ask, get, modelPath, part, post } from "./api.js";
import { isEnough } from "./charts.js";
import { bytes, count, percent, points, score, when } from "./format.js";
import { jobs, newJob } from "./jobs.js";

const REFRESH_MS = 5000;
const SELDOM_MS = 60_000;
const MEASURES = ["R@1", "R@5", "MRR", "P@3", "nDCG@5"];

export function show(root, context) {
  const shown = versions(context);
  const listed = jobs({ ...context, ended: () => shown.again() });
  fill(root, shown.element, newJob({ ...context, started: () => listed.again() }), listed.element);
}

/** The versions of the view: `element`, and `again()`, which reloads them. */
function versions({ model, signal, attempt, refused, lacks, every }) {
  const chosen = new Set();
  const parts = { beside: h("div", { class: "stack" }), now: h("div", { class: "stack" }), list: h("div", { class: "stack" }), challengers: h("div", { class: "stack" }), said: h("div", { role: "status" }) };
  const element = h("div", { class: "view" },
    card("Serving now", parts.now, parts.said),
    card("Versions", parts.list),
    card("Challengers", parts.challengers),
  );
  const lacking = lacks("admin", "To activate or delete a version, or enter it as a challenger,");
  let isEntering = false;
  let last = "";
  let askedAgainAt = 0; // earliest time of the next request for versions, if the service has none

  every(REFRESH_MS, again);

  function again() {
    return attempt(parts.now, async () => {
      const [path, former] = [modelPath(model), last];
      last = ""; // after an error, all is drawn again
      const [about, contest, found] = await Promise.all([get(path, { signal }), get(`${path}/challengers`, { signal }), listed()]);
      last = JSON.stringify([about.serving, contest, found]);
      if (last === former) return;
      drawNow(about, found);
      drawList(about, contest, found);
      drawChallengers(contest, found);
    });
  }

  /** Return the cards of the versions; null if the service has no versions, which is checked again once a minute. */
  async function listed() {
    if (performance.now() < askedAgainAt) return null;
    try {
      return (await get(`${modelPath(model)}/versions`, { signal })).versions;
    } catch (error) {
      if (!error.isMissing && error.type !== "/problems/artifacts-unavailable") throw error;
      askedAgainAt = performance.now() + SELDOM_MS;
      return null;
    }
  }

  function drawNow(about, found) {
    const card = (found || []).find((one) => one.id === about.version);
    const { former } = about.serving;
    refill(parts.now,
      h("div", { class: "row apart" },
        h("p", {}, h("strong", {}, nameOf(about.version, found)), card ? ` from ${when(card.created)}` : about.version === "live" ? ": it learns with every event" : ""),
        lacking ? null : h("div", { class: "row" },
          former !== about.version ? h("button", { onclick: () => activate(former, found, goesBack(former, about.version, found) ? "Roll back" : "Serve again") }, `${goesBack(former, about.version, found) ? "Roll back to" : "Serve again:"} ${nameOf(former, found)}`) : null,
          about.version === "live" || former === "live" ? null : h("button", { onclick: () => activate("live", found, "Serve the index") }, "Serve the live index"),
        ),
      ),
      about.version === "live" ? null : h("p", { class: "hint" }, `It answers alone, and does not change. Learning goes on in the live index.`),
      lacking ? h("p", { class: "hint" }, lacking) : null,
    );
  }

  function drawList(about, contest, found) {
    if (found === null) {
      fill(parts.list, empty("This service keeps no versions.", "It has no artifact store, and answers from the live index."));
      return;
    }
    if (found.length === 0) {
      fill(parts.list, empty("No versions yet.", refused ? "A job that fits a method makes one." : "A job that fits a method makes one: start it with the form below."));
      return;
    }
    for (const id of chosen) if (!found.some((one) => one.id === id)) chosen.delete(id);
    const entered = new Set(contest.challengers.map((one) => one.version));
    refill(parts.list,
      table("Versions, newest first",
        ["", "version", "#R@1", "#R@5", "#instances", "#classes", "#size", "made", ...(lacking ? [] : [""])],
        [...baselineRow(found, about), ...found.map((one) => [
          h("input", { type: "checkbox", "aria-label": `Compare ${one.method} ${one.id.slice(0, 8)}`, checked: chosen.has(one.id), onchange: (event) => choose(one.id, event.target.checked) }),
          [h("span", { class: "whole" }, h("strong", {}, one.method), " ", h("code", {}, one.id.slice(0, 8))), one.id === about.version ? [" ", h("span", { class: "tag on" }, "serving")] : null],
          measured(one.metrics, "R@1"),
          measured(one.metrics, "R@5"),
          count(one.sizes?.instances),
          count(one.sizes?.classes),
          bytes(one.bytes),
          h("span", { class: "whole" }, when(one.created)),
          ...(lacking ? [] : [h("div", { class: "row end" },
            one.id === about.version ? null : entered.has(one.id)
              ? h("button", { class: "small quiet", "aria-label": `Withdraw the challenger ${one.method} ${one.id.slice(0, 8)}`, onclick: () => challenge(one, false) }, "Withdraw")
              : h("button", { class: "small quiet", "aria-label": `Challenge with ${one.method} ${one.id.slice(0, 8)}`, onclick: () => challenge(one, true) }, "Challenge"),
            one.id === about.version ? null : h("button", { class: "small", "aria-label": `Activate ${one.method} ${one.id.slice(0, 8)}`, onclick: () => activate(one.id, found, "Activate") }, "Activate"),
            one.needed ? null : h("button", { class: "small quiet danger", "aria-label": `Delete ${one.method} ${one.id.slice(0, 8)}`, onclick: () => remove(one, found) }, "Delete"),
          )]),
        ])],
      ),
      h("p", { class: "hint" }, "Measured on the newest part of the data of each version, which it had not seen. In brackets: against a live index that learned the same data; its own row is measured with the newest version. The names of labels count as instances. Tick several to see them side by side."),
      parts.beside,
    );
  }

  /** The live index as a row, measured on the same instances as the newest version that has such measures. */
  function baselineRow(found, about) {
    const beside = found.find((one) => one.metrics?.["live R@1"] !== undefined);
    const metric = (name) => percent(beside?.metrics[`live ${name}`]);
    return [["", [h("strong", { class: "whole" }, "live index"), about.version === "live" ? [" ", h("span", { class: "tag on" }, "serving")] : null], metric("R@1"), metric("R@5"), count(about.learned), count(about.classes), bytes(about.memory_parts.index), h("span", { class: "whole" }, beside ? `measured with ${beside.method}` : "not measured"), ...(lacking ? [] : [""])]];
  }

  async function choose(id, isIn) {
    if (isIn) chosen.add(id);
    else chosen.delete(id);
    if (chosen.size < 2) {
      fill(parts.beside);
      return;
    }
    await attempt(parts.beside, async () => {
      const ids = [...chosen].map((one) => `id=${part(one)}`).join("&");
      const beside = await get(`${modelPath(model)}/comparison?${ids}`, { signal });
      const names = beside.versions.map((one, at) => `${beside.methods[at]} ${one.slice(0, 8)}`);
      const rows = [
        ...MEASURES.filter((name) => name in beside.metrics).map((name) => [term(name), ...beside.metrics[name].map(percent)]),
        ...MEASURES.filter((name) => `live ${name}` in beside.metrics).map((name) => [[term(name), " of the live index"], ...beside.metrics[`live ${name}`].map(percent)]),
        ["size", ...beside.bytes.map(bytes)],
        ...Object.entries(beside.params)
          .filter(([, values]) => new Set(values.map((value) => JSON.stringify(value))).size > 1)
          .map(([name, values]) => [h("code", {}, name), ...values.map((value) => (value === null ? "–" : String(value)))]),
      ];
      fill(parts.beside, h("h3", {}, "Side by side"), table("Versions side by side", ["", ...names.map((name) => `#${name}`)], rows));
      announce(`${names.length} versions side by side.`);
    });
  }

  async function remove(one, found) {
    const name = nameOf(one.id, found);
    if (!(await confirmed(`Delete ${name}?`, "This deletes its files permanently. A job can fit it again.", "Delete it"))) return;
    await attempt(parts.said, async () => {
      await ask("DELETE", `${modelPath(model)}/versions/${part(one.id)}`, { signal });
      fill(parts.said, h("p", { class: "note" }, `${name} is deleted.`));
      await again();
    });
  }

  function drawChallengers({ challengers, contest }, found) {
    const all = contest?.versions || [];
    if (challengers.length === 0 && all.length < 2) {
      fill(parts.challengers, empty("No challengers.", "A challenger is scored on each event, and not served until it proves better."));
      return;
    }
    const waiting = challengers.filter((one) => !all.some((other) => other.version === one.version));
    const notes = [
      waiting.length ? h("p", { class: "note" }, `${waiting.map((one) => nameOf(one.version, found)).join(", ")}: not scored yet; that begins with the next event that is learned.`) : null,
      ...Object.entries(contest?.trouble || {}).map(([version, why]) => h("p", { class: "worry" }, `${nameOf(version, found)}: ${why}`)),
    ];
    if (all.length === 0) {
      fill(parts.challengers, notes);
      return;
    }
    const { gate } = contest;
    const names = all.map((one) => nameOf(one.version, found));
    refill(parts.challengers,
      notes,
      table("Challengers against what is served",
        ["version", "it is", "#events", "#R@1", "#MRR", "#better by (MRR)", "#at least", "#at most", "#evidence"],
        all.map((one, at) => [
          names[at],
          h("span", { class: `tag ${["served", "better"].includes(one.decision) ? "on" : ""}` }, one.decision),
          count(one.window.n),
          ...["R@1", "MRR"].map((name) => (isEnough(one.window) ? percent(one.window[name]) : "–")),
          ...["mean", "low", "high"].map((name) => points(one.difference?.[name])),
          one.difference ? `${score(one.difference.evidence)} of ${count(gate.needed)}` : "–",
        ]),
      ),
      h("p", { class: "hint" }, `Each event is ranked by all of them before it is learned; the figures are of the newest 5,000 at most. A challenger takes over when its evidence is reached, after ${count(gate.min_events)} events at least; that happens by chance alone in at most ${percent(gate.alpha)} of the cases.`),
      contest.decisions.length
        ? h("ul", {}, contest.decisions.slice(-5).reverse().map((one) => h("li", {}, `${one.kind === "promote" ? "Promoted" : "Rolled back to"} ${nameOf(one.version, found)} instead of ${nameOf(one.instead_of, found)}, after ${count(one.n)} events: ${one.outcome}`)))
        : null,
    );
  }

  async function activate(version, found, word) {
    const name = nameOf(version, found);
    if (!(await confirmed(`${word}: ${name}?`, version === "live" ? "All replicas switch at one log offset. From then on every learned event can change the answers." : "All replicas switch at one log offset. It answers from then on and does not change: learning goes on in the live index only. You can roll back at any time.", word))) return;
    fill(parts.said, h("p", { class: "note" }, "The replicas get ready…"));
    await attempt(parts.said, async () => {
      await post(`${modelPath(model)}/activate`, { version }, { signal });
      fill(parts.said, h("p", { class: "better" }, `${name} serves.`));
      announce(`${name} serves.`);
      await again();
    });
  }

  async function challenge(one, isIn) {
    if (isEntering) return;
    const pressed = performance.now();
    isEntering = true;
    await attempt(parts.said, async () => {
      const path = `${modelPath(model)}/challengers`;
      if (isIn) await post(path, { version: one.id }, { signal });
      else await ask("DELETE", `${path}/${part(one.id)}`, { signal });
      fill(parts.said, h("p", { class: "better" }, isIn ? `${one.method} is a challenger: it is scored from the next event on.` : `${one.method} is no challenger any more.`));
      await pastDoubleClick(pressed); // the button that reverts it appears in the same position
      await again();
    });
    isEntering = false;
  }

  return { element, again };
}

/** A metric of a version, and its difference from the live index on the same instances. */
function measured(metrics, name) {
  const live = metrics?.[`live ${name}`];
  if (live === undefined || live === null) return percent(metrics?.[name]);
  const better = metrics[name] - live;
  return [percent(metrics[name]), " ", h("span", { class: better < 0 ? "worse" : better > 0 ? "better" : null }, `(${points(better).replace(" points", "")})`)];
}

/** Whether the version that served before is an older one; the live index counts as the oldest. */
function goesBack(former, served, found) {
  const made = (id) => (found || []).find((one) => one.id === id)?.created ?? 0;
  return made(former) <= made(served);
}

function nameOf(version, found) {
  if (version === "live") return "the live index";
  const card = (found || []).find((one) => one.id === version);
  return card ? `${card.method} ${version.slice(0, 8)}` : version;
}
