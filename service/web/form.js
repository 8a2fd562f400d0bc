// A form made from the JSON Schema of a method's parameters. What is left as it was is not sent.

import { field, h } from "./dom.js";

/** A form for a schema: `element`, and `values()`, which throws an Error that names the field where one is wrong. */
export function formOf(schema) {
  const controls = Object.entries(schema.properties || {}).map(([name, own]) => {
    const about = resolved(own, schema);
    const isNeeded = (schema.required || []).includes(name);
    return { name, isNeeded, ...controlFor(name, about, isNeeded) };
  });
  const fields = controls.map(({ element }) => element);
  return {
    element: h("div", { class: "fields" }, fields),
    values() {
      const given = {};
      for (const { name, read } of controls) {
        const value = read();
        if (value !== undefined) given[name] = value;
      }
      return given;
    },
  };
}

/** A schema without references and without the alternative of null. */
function resolved(own, schema) {
  let about = own;
  if (about.$ref) about = { ...schema.$defs?.[about.$ref.split("/").pop()], ...about };
  const ways = about.anyOf || about.oneOf;
  if (!ways) return about;
  const real = ways.filter((one) => one.type !== "null").map((one) => resolved(one, schema));
  const isOptional = real.length < ways.length;
  const type = real.length === 1 ? real[0].type : "json";
  return { ...real[0], ...about, type, isOptional };
}

function controlFor(name, about, isNeeded) {
  const said = [plain(about.description), bounds(about)].filter(Boolean).join(" ");
  const hint = said || null;
  const initial = about.default;
  const attributes = { name, required: isNeeded };
  if (about.type === "boolean" && !about.isOptional) {
    const control = h("input", { type: "checkbox", name, checked: initial === true, id: `param-${name}` });
    const element = h("div", { class: "field check" }, control, h("label", { for: control.id }, name), hint ? h("p", { class: "hint" }, hint) : null);
    return { element, read: () => (control.checked === (initial === true) ? undefined : control.checked) };
  }
  if (about.enum || about.type === "boolean") {
    const words = about.enum || [true, false];
    const options = words.map((word) => h("option", { value: String(word), selected: word === initial }, String(word)));
    if (about.isOptional || initial === undefined) options.unshift(h("option", { value: "" }, "as it is by default"));
    const control = h("select", attributes, options);
    const first = control.value;
    return {
      element: field(name, control, hint),
      read: () => (control.value === first ? undefined : words.find((word) => String(word) === control.value)),
    };
  }
  if (about.type === "integer" || about.type === "number") {
    const control = h("input", {
      ...attributes,
      type: "number",
      step: about.type === "integer" ? "1" : "any",
      min: about.minimum,
      max: about.maximum,
      value: initial ?? "",
      placeholder: initial === null ? "not set" : null,
    });
    const first = control.value;
    return {
      element: field(name, control, hint),
      read() {
        if (!control.checkValidity()) throw new Error(`${name}: ${control.validationMessage}`);
        return control.value === first || control.value === "" ? undefined : Number(control.value);
      },
    };
  }
  if (about.type === "string") {
    const control = h("input", { ...attributes, type: "text", maxlength: about.maxLength, value: initial ?? "" });
    return { element: field(name, control, hint), read: () => (control.value === (initial ?? "") ? undefined : control.value) };
  }
  const first = initial === undefined || initial === null ? "" : JSON.stringify(initial);
  const control = h("input", { ...attributes, type: "text", class: "mono", value: first, placeholder: "JSON" });
  return {
    element: field(name, control, [hint, "As JSON."].filter(Boolean).join(" ")),
    read() {
      if (control.value === first) return undefined;
      try {
        return JSON.parse(control.value);
      } catch {
        throw new Error(`${name}: not JSON`);
      }
    },
  };
}

const plain = (text) => text?.replaceAll("`", "").replace(/\s+/g, " ").trim();

function bounds({ minimum, maximum }) {
  if (minimum !== undefined && maximum !== undefined) return `From ${minimum} to ${maximum}.`;
  if (minimum !== undefined) return `At least ${minimum}.`;
  return maximum === undefined ? null : `At most ${maximum}.`;
}
