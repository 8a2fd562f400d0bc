// Versions and jobs in one view: the active version, challengers, new jobs, running jobs.

import { fill } from "./dom.js";
import { jobs, newJob } from "./jobs.js";
import { versions } from "./versions.js";

export function show(root, context) {
  const shown = versions(context);
  const listed = jobs({ ...context, ended: () => shown.again() });
  fill(root, shown.element, newJob({ ...context, started: () => listed.again() }), listed.element);
}
