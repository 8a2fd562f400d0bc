// Keys and the audit log, for keys with the scope admin that are for all models.

import { announce, breakable, card, confirmed, empty, field, fill, h, refill, single, table } from "./dom.js";
import { ask, get, part, post } from "./api.js";
import { when } from "./format.js";

const SCOPES = [["classify", "rank labels"], ["learn", "teach"], ["admin", "everything, with the other two"]];
const ACTS = 50;
const DAY = 86_400;

export function show(root, { signal, attempt, refused }) {
  const parts = { keys: h("div", { class: "stack" }), made: h("div", { class: "stack", role: "status" }), acts: h("div", { class: "stack" }) };
  if (refused) {
    fill(root, card("Keys", h("p", { class: "note" }, `${refused.message}.`)));
    return;
  }
  let acts = [];
  const more = single(read);
  const creating = newKeyCard();
  creating.hidden = true; // until there is a first key, which only the command line makes
  fill(root, card("Keys", parts.keys, parts.made), creating, card("Audit log", parts.acts));
  list();
  more();

  async function list() {
    await attempt(parts.keys, async () => {
      const { keys } = await get("keys", { signal });
      creating.hidden = keys.length === 0;
      if (keys.length === 0) {
        fill(parts.keys, empty("There is no key yet, so anyone who can reach this service has full access.", "Create the first one on the machine of the store, with the --data-dir of the service if it has one: ", h("code", {}, "abound keys create --scope admin")));
        return;
      }
      refill(parts.keys, table("Keys, oldest first", ["key", "for", "state", "used", "expires", ""],
        keys.map((one) => [
          [h("div", { class: "break" }, breakable(one.description || "–")), h("code", {}, one.id)],
          [h("div", { class: "whole" }, one.scopes.join(", ")), h("div", { class: "hint break" }, one.models ? breakable(one.models.join(", ")) : "all models")],
          h("span", { class: `tag ${one.state === "valid" ? "on" : ""}` }, one.state),
          h("span", { class: "whole" }, one.used === null ? "never" : when(one.used)),
          h("span", { class: "whole" }, one.expires === null ? "never" : when(one.expires)),
          one.state === "valid"
            ? h("div", { class: "row end" },
                h("button", { class: "small", "aria-label": `Replace ${one.description || one.id}`, onclick: () => rotate(one) }, "Replace"),
                h("button", { class: "small quiet danger", "aria-label": `Revoke ${one.description || one.id}`, onclick: () => revoke(one) }, "Revoke"),
              )
            : null,
        ]),
      ));
    });
  }

  function newKeyCard() {
    const description = h("input", { type: "text", maxlength: "200", autocomplete: "off" });
    const scopes = SCOPES.map(([name, said]) => [name, h("input", { type: "checkbox", checked: name === "classify", id: `scope-${name}` }), said]);
    const models = h("input", { type: "text", autocomplete: "off" });
    const days = h("input", { type: "number", min: "1", max: "36500", step: "1" });
    const rate = h("input", { type: "text", autocomplete: "off", placeholder: "1000/second" });
    const submit = single(async () => {
      const body = { scopes: scopes.filter(([, box]) => box.checked).map(([name]) => name), description: description.value };
      const named = models.value.split(",").map((one) => one.trim()).filter(Boolean);
      if (named.length) body.models = named;
      if (days.value) body.seconds = Number(days.value) * DAY;
      if (rate.value) body.rate = rate.value;
      await make(() => post("keys", body, { signal }));
    });
    return card("Create a key", h("form", { class: "fields", onsubmit: submit },
      field("Description", description, "Who uses it."),
      h("fieldset", {}, h("legend", {}, "It may"), scopes.map(([name, box, said]) => h("div", { class: "field check" }, box, h("label", { for: box.id }, `${name}: ${said}`)))),
      field("Models", models, "Names with commas between them; empty: all."),
      field("Days", days, "Empty: it does not expire."),
      field("Rate", rate, "Most instances in a time; empty: no limit."),
      h("div", { class: "row all" }, h("button", { type: "submit", class: "primary" }, "Create")),
    ));
  }

  /** Show a new secret; the service returns it only once. */
  async function make(work) {
    await attempt(parts.made, async () => {
      const made = await work();
      const secret = h("input", { type: "text", readonly: true, class: "mono", value: made.key });
      fill(parts.made,
        field("The new key", secret, "Copy it now: the service does not keep it."),
        h("div", { class: "row" }, h("button", { onclick: () => secret.select() }, "Select it"), h("button", { class: "quiet", onclick: () => fill(parts.made) }, "Hide it")),
      );
      announce("The key is there. Copy it now.");
      secret.focus();
      secret.select();
      await list();
    });
  }

  async function rotate(one) {
    const name = one.description || one.id;
    if (await confirmed(`Replace ${name}?`, "A new key with the same rights is made. The old one ends in an hour.", "Replace it")) make(() => post(`keys/${part(one.id)}/rotate`, {}, { signal }));
  }

  async function revoke(one) {
    const name = one.description || one.id;
    if (!(await confirmed(`Revoke ${name}?`, "Replicas refuse it within about a second. This cannot be undone.", "Revoke it"))) return;
    await attempt(parts.made, async () => {
      await ask("DELETE", `keys/${part(one.id)}`, { signal });
      fill(parts.made, h("p", { class: "better" }, `${name} is revoked.`));
      await list();
    });
  }

  function read() {
    return attempt(parts.acts, async () => {
      const before = acts.length ? `&before=${part(acts.at(-1).id)}` : "";
      const found = (await get(`audit?limit=${ACTS}${before}`, { signal })).acts;
      acts = [...acts, ...found];
      refill(parts.acts,
        acts.length
          ? table("Administrative acts, newest first", ["time", "act", "by", "outcome", "details"],
              acts.map((one) => [
                h("span", { class: "whole" }, when(one.at)),
                h("code", {}, one.action),
                h("span", { class: "break" }, one.key ?? one.address),
                h("span", { class: `tag ${one.outcome === "done" ? "on" : "bad"}` }, one.outcome),
                h("span", { class: "break wide" }, Object.entries(one.details).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ")),
              ]),
            )
          : empty("Nothing was done yet.", "Changes of keys, models and versions appear here."),
        found.length === ACTS ? h("button", { onclick: more }, "Show more") : null,
      );
    });
  }
}
