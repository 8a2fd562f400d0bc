// Explanations of technical terms, for tooltips.

export const TERMS = {
  "R@1": "Share of the events whose best true label was ranked first.",
  "R@5": "Share of the events with a true label among the first five.",
  "P@3": "Mean share of true labels among the first three.",
  "nDCG@5": "How near the first five labels are to the best order; lower places count less. 1 is perfect.",
  "better by (MRR)": "Mean difference of 1 / rank of the best true label from what is served, on the same events.",
  MRR: "Mean of 1 / rank of the best true label: 1 is perfect.",
  head: "Labels seen 100 times or more.",
  torso: "Labels seen 10 to 99 times.",
  tail: "Labels seen fewer than 10 times.",
  offset: "A place in the log: milliseconds since 1970, entry, position.",
  digest: "A fingerprint of all that was learned: replicas at the same offset must have the same digest.",
  lag: "Entries of the log that a replica has not applied yet.",
};
