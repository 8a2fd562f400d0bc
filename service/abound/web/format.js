// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
/** A number with its noun: 1 event, 2 events. */
export const counted = (n, noun, plural = `${noun}s`) => `${count(n)} ${n === 1 ? noun : plural}`;
export const compact = (n) => (n < 10000 ? whole.format(n) : short.format(n));
export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
/** An estimated probability: never shown as 0 or 1. */
export const chance = (p) => (p < 0.001 ? "<0.1 %" : p > 0.999 ? ">99.9 %" : percent(p));
export const score = (n) => (n === 0 ? "0" : Math.abs(n) >= 0.001 ? n.toFixed(3) : n.toExponential(1)).replace(/^-/, "−");

export function points(share) {
  if (share === null || share === undefined) return "–";
  return `${share > 0 ? "+" : ""}${(100 * share).toFixed(1).replace("-", "−")} points`;
}

export function rate(n) {
  if (n === null) return "–";
  return n < 10 && !Number.isInteger(n) ? n.toFixed(1) : compact(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let size = n;
  for (const unit of ["bytes", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return unit === "bytes" ? `${size} ${unit}` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export function duration(seconds) {
  if (seconds < 1) return `${seconds < 0.01 ? Number((1000 * seconds).toPrecision(2)) : Math.round(1000 * seconds)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function when(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const time = new Date(1000 * seconds);
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : moment(time);
}

/** A date and a time; `time`: a Date or milliseconds. */
export const moment = (time) => new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** A time on an axis: the date at midnight, else the time of the day. */
export function clock(time) {
  const date = new Date(time);
  const year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  if (date.getHours() + date.getMinutes() + date.getSeconds() === 0) return date.toLocaleDateString([], { day: "numeric", month: "short", year });
  return date.toLocaleTimeString([], { timeStyle: date.getSeconds() ? "medium" : "short" });
}

// Characters that are invisible, look like a space, or reverse the text after them. Joiners, marks of direction, variation
// selectors of emoji and the tags of flags are not among them.
const UNSEEN = /(?![\u200c-\u200f\u061c\ufe0e\ufe0f])(?<!\u{1f3f4}[\u{e0020}-\u{e007f}]*(?=[\u{e0020}-\u{e007f}]))[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?![ \u3000])\p{Zs}|^ | $|(?<=\p{Zs}) /gu;
const BLANK = /^[\p{Z}\p{C}\p{Default_Ignorable_Code_Point}\u2800]*$/u;

const escaped = (character) => {
  const code = character.codePointAt(0).toString(16).padStart(4, "0");
  return character === " " ? "␣" : code.length > 4 ? `\\u{${code}}` : `\\u${code}`;
};

/** A name from a user, with invisible characters escaped; only for display. */
export const legible = (name) => (BLANK.test(name) ? [...name].map(escaped).join("") : name.replace(UNSEEN, escaped));
