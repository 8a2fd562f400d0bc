// What this tab has taught, and how it is undone.

import { done } from "./api.js";

const KEPT = "abound.taught";
const MOST = 200;

/** The offset of the newest event that this page taught, by incarnation of a model. Answers must contain it. */
export const taught = new Map();

const read = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");

function write(entries) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(entries.slice(0, MOST)));
  } catch {
    // There is no room for long texts: what was taught can be seen in the events of the model.
  }
}

/** Record an event: `{incarnation, key, offset, rank, time, labels, rejected, source}` and its instance. */
export function record(entry) {
  taught.set(entry.incarnation, entry.offset);
  write([entry, ...read()]);
}

/** Return what this tab knows of the events of an incarnation, by offset. */
export const recorded = (incarnation) => new Map(read().filter((one) => one.incarnation === incarnation).map((one) => [one.offset, one]));

/** Forget the events that `selects`: `{key}`, or `{since, until}`. Returns a sentence if that failed, else null. */
export async function undo(model, selects, { signal, told }) {
  const asked = { model, method: "forget", params: { ...selects, reason: "undone on the page" } };
  const job = await done(asked, signal, ({ stage, progress }) => told(`${stage || "waiting for a worker"}: ${Math.round(100 * progress)} %`));
  if (job.state !== "succeeded") return job.error ?? job.state;
  write(read().filter((one) => one.key !== selects.key));
  return null;
}
