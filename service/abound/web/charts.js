// Line charts as SVG. Each has a description and a table of its values. Colours are variables of the style sheet.

import { fill, h, refill, table } from "./dom.js";

/** A share of fewer events is not meaningful. */
export const LEAST_EVENTS = 30;
export const isEnough = ({ n }) => n >= LEAST_EVENTS;

const MOST_TICKS = 7;
const ROUND = [1, 2, 5, 10, 20, 50];
const DAYS = [1, 2, 7, 14, 28, 91, 182, 364, 1820];
const TIMES = [1, 5, 15, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, ...DAYS.map((n) => 86400 * n)].map((n) => 1000 * n);

/** Like `h`, for SVG. */
function drawn(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** A group or picture in the colour of a series, with a line along a path. */
function lined(tag, { colour, dash, isMain }, d, attributes, ...children) {
  const line = drawn("path", { d, "stroke-dasharray": dash?.join(" ") ?? "none" });
  const element = drawn(tag, { class: isMain ? "line main" : "line", ...attributes }, line, ...children);
  element.style.color = `var(--${colour})`;
  return element;
}

const swatch = (one) => lined("svg", one, "M0 4H18", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": true });
const text = (said, x, y, anchor) => drawn("text", { x, y, "text-anchor": anchor }, said);
const circle = ([cx, cy], r) => drawn("circle", { cx, cy, r });

/**
 * An axis over some values: `share` is the place of a value, from 0 to 1, and `ticks` at most `room` round numbers, of times
 * by the clock here. The range is that of the values, or with `isWide` that of the ticks.
 */
function scaled({ zero, most, isTime }, values, room, isWide) {
  let [low, high] = [zero ? 0 : Math.min(...values), most ?? Math.max(...values)];
  const zone = (time) => (isTime ? 60000 * new Date(time).getTimezoneOffset() : 0);
  const [from, to] = [low - zone(low), high - zone(high)];
  const power = 10 ** Math.floor(Math.log10((high - low || 1) / room));
  const steps = isTime ? TIMES : ROUND.map((n) => n * power);
  const [first, last] = isWide ? [Math.floor, Math.ceil] : [Math.ceil, Math.floor];
  const step = steps.find((one) => last(to / one) - first(from / one) < room) ?? steps.at(-1);
  const ticks = [];
  for (let n = first(from / step); n <= last(to / step); n += 1) ticks.push(n * step + zone(n * step));
  if (isWide) [low, high] = [ticks[0], ticks.at(-1)];
  return { ticks, share: (value) => (value - low) / (high - low || 1) };
}

/**
 * A line chart; `options`: title, caption, x, y ({title, format, said, zero, most, isTime}), and apart: the series have
 * different x values. `dots` of a series: the size of each of its points.
 */
export class LineChart {
  constructor(options) {
    this.options = options;
    this.svg = drawn("svg", { role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.table = h("div", { class: "figures" });
    const point = ({ clientX, clientY }) => {
      const { left, top } = this.plot.getBoundingClientRect();
      this.tell([clientX - left, clientY - top]);
    };
    const leave = () => this.tell(null);
    // A tap ends with a moved mouse, after its pointer has left.
    this.plot = h("div", { class: "plot", onpointermove: point, onmousemove: point, onpointerleave: leave, onmouseleave: leave }, this.svg, this.tip);
    const figures = h("details", {}, h("summary", {}, "As a table"), this.table);
    this.element = h("figure", {}, this.plot, this.legend, h("figcaption", {}, options.caption || ""), figures);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** Show these series: `[{name, colour, points: [[x, y]...]}]`, with a sentence and a table. */
  set(shown) {
    this.shown = shown;
    this.svg.setAttribute("aria-label", shown.said);
    refill(this.table, table(this.options.title, shown.columns, shown.rows));
    fill(this.legend, shown.series.length > 1 ? shown.series.map((one) => h("span", {}, swatch(one), one.name)) : null);
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!this.shown || !width) return;
    const { x, y } = this.options;
    const [across, up] = [0, 1].map((at) => this.shown.series.flatMap((one) => one.points.map((point) => point[at])).filter((value) => value !== null));
    const ys = scaled(y, up, MOST_TICKS, true);
    const [left, right, top, bottom] = [8 + 7 * Math.max(...ys.ticks.map((one) => y.format(one).length)), width - 14, 26, height - 40];
    const xs = scaled(x, across, Math.max(3, Math.min(MOST_TICKS, Math.floor(width / 75))), false);
    const placed = ([a, b]) => [left + (right - left) * xs.share(a), bottom - (bottom - top) * ys.share(b)].map((n) => Math.round(10 * n) / 10);
    this.spots = [];
    const lines = this.shown.series.map((one) => {
      const places = one.points.map((point) => (point[1] === null ? null : placed(point)));
      places.forEach((place, at) => place && this.spots.push({ one, at, place, point: one.points[at] }));
      // Gaps interrupt a line. A point without neighbours would be invisible, so it is drawn as a dot.
      const d = places.map((place, at) => (place ? `${places[at - 1] ? "L" : "M"}${place.join(" ")}` : "")).join("");
      const size = (at) => one.dots?.[at] ?? (places[at - 1] || places[at + 1] ? 0 : 3);
      return lined("g", one, d, {}, ...places.flatMap((place, at) => (place && size(at) ? [circle(place, size(at))] : [])));
    });
    this.mark = drawn("g");
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      ...ys.ticks.flatMap((one) => {
        const [, at] = placed([0, one]);
        return [drawn("path", { d: `M${left} ${at}H${right}` }), text(y.format(one), left - 8, at + 4, "end")];
      }),
      ...xs.ticks.flatMap((one) => {
        const [at] = placed([one, 0]);
        return [drawn("path", { d: `M${at} ${top}V${bottom}` }), text(x.format(one), at, bottom + 17, "middle")];
      }),
      text(y.title, 0, 12, "start"),
      text(x.title, (left + right) / 2, height - 3, "middle"),
      this.mark,
      ...lines,
    );
    this.tell(this.pointer);
  }

  /** Tell the values next to the pointer: all at the nearest x, or if the series are apart, the nearest point. */
  tell(pointer) {
    this.pointer = pointer;
    const { x, y, apart } = this.options;
    const far = ({ place }) => Math.hypot(place[0] - pointer[0], apart ? place[1] - pointer[1] : 0);
    const nearest = pointer && this.spots?.reduce((best, one) => (far(one) < far(best) ? one : best));
    this.tip.hidden = !nearest;
    this.mark?.replaceChildren();
    if (!nearest) return;
    const told = apart ? [nearest] : this.spots.filter((one) => one.at === nearest.at);
    const { clientWidth: width, clientHeight: height } = this.plot;
    const [at, up] = nearest.place;
    this.mark.replaceChildren(drawn("path", { d: `M${at} 26V${height - 40}` }), ...told.map((one) => circle(one.place, 4)));
    fill(this.tip, h("strong", {}, x.said(nearest.point[0])), told.map(({ one, point }) => h("div", {}, swatch(one), `${one.name}: ${y.format(point[1])}`)));
    this.tip.style.insetInline = at < width / 2 ? `${at + 12}px auto` : `auto ${width - at + 12}px`;
    this.tip.style.top = `${Math.max(0, Math.min(up + 14, height - this.tip.offsetHeight))}px`;
  }
}
