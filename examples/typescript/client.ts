// Suggest labels for a text, or teach the right ones:
//
//     node build/client.js tickets "I was charged twice"
//     node build/client.js tickets "I was charged twice" billing
//
// ABOUND_URL and ABOUND_KEY name the service and its key.

import { fileURLToPath } from "node:url";
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.d.ts";

type Schemas = components["schemas"];
type Json = "application/json" | "application/problem+json"; // streams of lines are not used here

export class Model {
  private readonly http: Client<paths, Json>;

  constructor(readonly name: string, url: string, key?: string) {
    this.http = createClient<paths, Json>({ baseUrl: url, headers: key ? { Authorization: `Bearer ${key}` } : {} });
  }

  /** The best labels for a text, with their scores. */
  async suggest(text: string, k = 3): Promise<Schemas["ScoredLabel"][]> {
    const { data, error } = await this.http.POST("/models/{model}/classify", {
      params: { path: { model: this.name } },
      body: { text, k, names: true },
    });
    if (error) throw refusal(error);
    return "labels" in data ? data.labels : [];
  }

  /** Learn the right labels of a text. A call with the same key is learned once. */
  async teach(text: string, labels: string[], idempotencyKey?: string): Promise<void> {
    const { error } = await this.http.POST("/models/{model}/learn", {
      params: { path: { model: this.name }, header: { "Idempotency-Key": idempotencyKey } },
      body: { text, labels },
    });
    if (error) throw refusal(error);
  }
}

function refusal(problem: Schemas["Problem"]): Error {
  return new Error(`${problem.detail} (${problem.status})`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [name, text, ...labels] = process.argv.slice(2);
  if (name === undefined || text === undefined) throw new Error("usage: client.js MODEL TEXT [LABEL ...]");
  const model = new Model(name, process.env.ABOUND_URL ?? "http://127.0.0.1:8000", process.env.ABOUND_KEY);
  if (labels.length > 0) await model.teach(text, labels);
  for (const one of await model.suggest(text)) console.log(one.label, one.score.toFixed(3));
}
