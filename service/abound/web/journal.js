// What this tab has taught, and how it is undone.

import { ask, done, modelPath, newKey, part } from "./api.js";

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

/** Record an event: `{model, incarnation, offset, rank, time, labels, rejected, source}` and its instance. */
export function record(entry) {
  taught.set(entry.incarnation, entry.offset);
  write([entry, ...read()]);
}

/** Return what this tab knows of the events of a model, by offset. */
export const recorded = (model) => new Map(read().filter((one) => one.model === model).map((one) => [one.offset, one]));

/** Undo the request that taught the event at an offset. Returns a sentence if that failed, else null. */
export async function undo(model, offset, { signal, told }) {
  const again = { signal, headers: { "Idempotency-Key": newKey() } };
  const job = await done(() => ask("DELETE", `${modelPath(model)}/events/${part(offset)}`, again), ({ stage, progress }) => told(`${stage || "waiting for a worker"}: ${Math.round(100 * progress)} %`));
  if (job.state !== "succeeded") return job.error ?? job.state;
  write(read().filter((one) => one.offset !== offset));
  return null;
}
