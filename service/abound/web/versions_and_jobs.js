// Versions and jobs in one view: the active version, challengers, new jobs, running jobs.

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

/** Like `every`, and at once after a job was submitted. */
function soon({ every, signal }) {
  return (ms, work) => {
    again.addEventListener("job", work, { signal });
    return every(ms, work);
  };
}
