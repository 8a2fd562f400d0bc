// Versions and jobs in one view: what serves, what contends, what can be started, what runs.

import { fill } from "./dom.js";
import { jobs, newJob } from "./jobs.js";
import { versions } from "./versions.js";

export function show(root, context) {
  const shown = versions(context);
  fill(
    root,
    shown.element,
    newJob({ ...context, started: () => again.dispatchEvent(new Event("job")) }),
    jobs({ ...context, every: soon(context), ended: () => shown.again() }),
  );
}

const again = new EventTarget();

/** As `every`, and at once when a job was asked for. */
function soon({ every, signal }) {
  return (ms, work) => {
    again.addEventListener("job", work, { signal });
    return every(ms, work);
  };
}
