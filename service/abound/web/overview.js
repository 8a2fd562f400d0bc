// Accuracy and size of a model, and whether its replicas agree.

import { card, empty, facts, h, refill, table } from "./dom.js";
import { get, modelPath, part } from "./api.js";
import { groupsTable, reliabilityCard, rerankingFacts, traceCard } from "./accuracy.js";
import { decisionCard } from "./decisions.js";
import { bytes, count, counted, duration } from "./format.js";
import { startCard } from "./start.js";
import { figureTiles, worsening } from "./tiles.js";

const REFRESH_MS = 2000;
const MANY_EVENTS = 1000; // after which a comparison of rules means something
const MEMORY_PARTS = {
  features: "names of features", labels: "names of labels", class_means: "means of labels",
  counters: "counts and score", receipts: "idempotency keys",
};

export function show(root, context) {
  const { model, signal, attempt, every, lacks } = context;
  const parts = {
    trouble: h("div", {}),
    worse: h("p", { class: "problem", hidden: true }),
    reranking: h("div", {}),
    groups: h("div", {}),
    replicas: h("div", { class: "stack" }),
    size: h("div", { class: "stack" }),
  };
  const start = startCard(context);
  const refit = h("a", { href: `#versions/${part(model)}/refit` }, "Let the job refit compare both");
  const rule = ["Would the accurate rule (", h("code", {}, "sls"), ") be better here? "];
  const compare = h("p", { class: "note" }, rule, refit, " on the newest events and keep the better one.");
  const tiles = figureTiles();
  const trace = traceCard();
  const decided = decisionCard(context);
  const reliable = reliabilityCard();
  const reranked = card("What re-ranking has learned", parts.reranking);
  const rest = h("div", { class: "view" },
    parts.worse,
    compare,
    tiles.element,
    trace.element,
    decided.element,
    reliable.element,
    reranked,
    h("div", { class: "halves" },
      h("div", { class: "view start" }, card("Frequent and rare labels", parts.groups), card("Replicas", parts.replicas)),
      card("Size against its bounds", parts.size),
    ),
  );
  start.hidden = rest.hidden = true;
  root.append(parts.trouble, start, rest);

  every(REFRESH_MS, () => attempt(parts.trouble, async () => {
    const path = modelPath(model);
    const [stats, about] = await Promise.all([get(`${path}/stats`, { signal }), get(path, { signal })]);
    parts.trouble.replaceChildren();
    draw(stats, about);
  }));

  function draw(stats, about) {
    start.hidden = stats.learned > 0 || about.version !== "live";
    rest.hidden = !start.hidden;
    if (rest.hidden) return;
    const worse = worsening(stats);
    parts.worse.hidden = worse === null;
    parts.worse.textContent = worse;
    compare.hidden = about.config.update !== "fsu" || stats.learned < MANY_EVENTS || Boolean(lacks("admin", ""));
    tiles.draw(stats, about);
    trace.draw(stats.trace);
    decided.draw(stats.decisions);
    reliable.draw(stats.calibration);
    reranked.hidden = stats.reranking === null;
    if (stats.reranking) refill(parts.reranking, rerankingFacts(stats.reranking));
    refill(parts.groups, groupsTable(stats.recent.groups));
    refill(parts.replicas, replicasTable(stats));
    refill(parts.size, sizeGauges(stats, about));
  }
}

/** The replicas, and what is kept of the model. */
function replicasTable({ replicas, kept }) {
  const next = "They report every few seconds while the store can be reached.";
  if (replicas.length === 0) return empty("No replica has reported yet.", next);
  const rows = replicas.map((one) => [
    [
      h("div", {}, `${one.host} `, h("span", { class: "hint whole" }, `pid ${one.pid}`)),
      h("span", { class: `tag ${one.ready ? "on" : "bad"}` }, one.ready ? "ready" : "not ready"),
    ],
    count(one.lag),
    [
      h("div", {}, h("code", {}, one.offset)),
      h("code", { class: "digest" }, one.digest ? one.digest.slice(0, 8) : "–"),
      one.digest && one.digest_offset !== one.offset ? h("span", { class: "hint whole" }, `at ${one.digest_offset}`) : null,
    ],
  ]);
  return [
    table("Replicas, how far each has come, and how far it is behind the log", ["replica", "#lag", "offset, digest"], rows),
    kept && facts([
      ["Log", `${counted(kept.log.entries, "entry", "entries")}, ${bytes(kept.log.bytes)}`],
      ["History", kept.history ? `${bytes(kept.history.bytes)} in ${counted(kept.history.segments, "segment")}` : "none yet"],
      ["Snapshot", kept.snapshot ? `${duration(kept.snapshot.age)} old` : "none yet"],
    ]),
  ];
}

/** The size of a model against its bounds. */
function sizeGauges(stats, { config }) {
  const unbound = "no bound of its own: all models share the memory of a replica";
  const rows = Object.entries(stats.memory_parts).map(([name, n]) => [MEMORY_PARTS[name] ?? name, bytes(n)]);
  return [
    gauge("Memory", stats.memory, config.max_memory, bytes, "max_memory", unbound),
    gauge("Features", stats.features, config.max_features, count, "max_features"),
    gauge("Classes", stats.classes, config.max_classes, count, "max_classes"),
    gauge("Connections a feature, mean", Number(stats.mean_out_degree.toFixed(2)), ...mostConnections(stats, config)),
    table("Of what the memory is", ["of the memory", "#bytes"], rows),
  ];
}

/** The maximum number of connections of a feature: value, text, setting, and the text if there is no bound. */
function mostConnections(stats, config) {
  if (stats.in_rows) return [null, count, "rows", "one to every class"];
  return config.update === "sls" ? [config.slots, String, "slots"] : [config.d_max, String, "d_max"];
}

function gauge(name, n, bound, format, setting, unbound = "no bound") {
  const share = bound ? Math.min(1, n / bound) : 0;
  const filling = h("i", {});
  filling.style.width = `${100 * share}%`;
  const said = bound ? `${format(n)} of ${format(bound)}` : `${format(n)}, ${unbound}`;
  const values = { "aria-valuemin": "0", "aria-valuemax": String(bound), "aria-valuenow": String(n), "aria-valuetext": said };
  return h("div", { class: `gauge ${share > 0.9 ? "full" : ""}` },
    h("div", { class: "row apart" }, h("span", {}, name), h("span", { class: "hint" }, said, " ", h("code", {}, setting))),
    bound ? h("div", { class: "track", role: "meter", "aria-label": name, ...values }, filling) : null,
  );
}
