// What a model with `decide` answers without a person, and what another target would cost.

import { announce, card, empty, field, fill, h, refill, table } from "./dom.js";
import { ask, modelPath } from "./api.js";
import { LineChart } from "./charts.js";
import { count, percent, points } from "./format.js";

const SHARES = { answer: "answered", defer: "deferred", none: "none" };

/** The card: `element`, hidden until `draw` shows the decisions of `/stats`, and null for a model that does not decide. */
export function decisionCard({ model, about, attempt, lacks }) {
  const chart = new LineChart({
    title: "Share answered against agreement",
    caption: "Each point is a threshold: the share that it would answer, and the share of the applied labels that would be right. A threshold meets a target if the lower bound, not the estimate, reaches it.",
    apart: true,
    x: { title: "share answered", format: (n) => `${Math.round(100 * n)} %`, said: (n) => `answers ${percent(n)}`, zero: true, most: 1 },
    y: { title: "agreement", format: percent },
  });
  const slider = h("input", { type: "range", min: String(Math.min(80, 100 * about.config.decide?.agreement || 80)), max: "99.9", step: "0.1", oninput: tell });
  const cost = h("p", { role: "status" });
  const button = h("button", { onclick: set });
  const said = h("div", { role: "status" });
  const parts = { curve: h("div", {}), target: h("div", { class: "stack" }, field("What would another target cost?", slider), cost, lacks("admin", "") ? null : h("div", { class: "row" }, button), said), shares: h("div", {}) };
  const element = card("Answers without a person", parts.curve, parts.target, parts.shares);
  element.hidden = true;
  let shown = null;

  /** The lowest threshold that meets a target answers the most. */
  const shareAt = (target) => shown.curve.find((one) => one.low >= target)?.share ?? null;
  const target = () => Number(slider.value) / 100;

  function tell() {
    const [now, then] = [shareAt(shown.agreement) ?? 0, shareAt(target())];
    const isSame = Math.abs(target() - shown.agreement) < 0.0005;
    slider.setAttribute("aria-valuetext", percent(target()));
    cost.textContent = `A target of ${percent(target())}${isSame ? ", the present one," : ""} ${then === null ? "is not reached by any threshold yet: everything would be deferred" : `would answer ${percent(then)}${isSame ? "" : `, ${points(then - now)}`}`}.`;
    button.textContent = `Set the target to ${percent(target())}`;
    button.hidden = isSame;
  }

  function set() {
    const agreement = Math.round(1000 * target()) / 1000;
    return attempt(said, async () => {
      await ask("PUT", modelPath(model), { body: { decide: { agreement } } });
      fill(said, h("p", { class: "better" }, `The target is ${percent(agreement)}.`));
      announce(said.textContent);
    });
  }

  function draw(decisions) {
    element.hidden = decisions === null;
    if (decisions === null) return;
    if (shown === null) slider.value = String(100 * decisions.agreement);
    shown = decisions;
    const curve = shown.curve.filter((one) => one.low > 0);
    parts.target.hidden = curve.length === 0;
    if (curve.length === 0) fill(parts.curve, empty("Nothing to decide by yet.", "Everything is deferred. The curve begins after some dozens of events with labels."));
    else if (!chart.element.isConnected) fill(parts.curve, chart.element);
    if (curve.length) drawCurve(curve);
    const columns = [shown.all, shown.newest];
    refill(parts.shares, table("Decisions", ["decision", "#all time", `#newest ${count(shown.newest.n)}`], [
      ...Object.entries(SHARES).map(([name, said]) => [said, ...columns.map((one) => (one.n ? percent(one.shares[name]) : "–"))]),
      ["audited", ...columns.map((one) => count(one.audited))],
      ...[["agreement", "agreement"], ["at least", "low"]].map(([said, name]) => [said, ...columns.map((one) => percent(one[name]))]),
    ]));
    tell();
  }

  function drawCurve(curve) {
    const now = curve.find((one) => one.threshold === shown.threshold);
    const none = curve.map(() => 0);
    chart.set({
      series: [
        { name: "agreement", colour: "accent", isMain: true, points: curve.map((one) => [one.share, one.agreement]), dots: none },
        { name: "lower bound", colour: "tail", dash: [6, 3], points: curve.map((one) => [one.share, one.low]), dots: none },
        { name: "target", colour: "soft", dash: [2, 3], points: [[0, shown.agreement], [1, shown.agreement]], dots: [0, 0] },
        ...(now ? [{ name: "this model", colour: "ink", points: [[now.share, now.agreement]], dots: [5] }] : []),
      ],
      said: now ? `This model answers ${percent(now.share)} with an agreement of ${percent(now.agreement)}, at least ${percent(now.low)}; its target is ${percent(shown.agreement)}.` : `No threshold reaches the target of ${percent(shown.agreement)}: everything is deferred.`,
      columns: ["probability at least", "#answered", "#agreement", "#lower bound"],
      rows: curve.map((one) => [percent(one.threshold), percent(one.share), percent(one.agreement), percent(one.low)]),
    });
  }

  return { element, draw };
}
