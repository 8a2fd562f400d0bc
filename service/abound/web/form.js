// A form generated from a JSON Schema. Unchanged fields are not sent; an optional field that was emptied is sent as null.

import { field, h, newId } from "./dom.js";

/**
 * A form for a schema: `element`, and `values()`, which throws an Error with the name of an invalid field.
 * `initial` replaces defaults of the schema. Required fields come first, then those named in `first`; `disabled` ones cannot
 * be changed.
 */
export function formOf(schema, { initial = {}, first = [], disabled = [] } = {}) {
  const { properties = {}, required = [] } = schema;
  const order = new Set([...required, ...first, ...Object.keys(properties)].filter((name) => Object.hasOwn(properties, name)));
  const controls = [...order].map((name) => {
    const about = resolved(properties[name], schema);
    return { name, ...controlFor(name, Object.hasOwn(initial, name) ? { ...about, default: initial[name] } : about, required.includes(name)) };
  });
  for (const { name, element } of controls) {
    if (disabled.includes(name)) for (const one of element.querySelectorAll("input, select")) one.disabled = true;
  }
  return {
    fields: new Map(controls.map(({ name, element }) => [name, element])),
    element: h("div", { class: "fields" }, controls.map(({ element }) => element)),
    values: () => Object.fromEntries(controls.map(({ name, read }) => [name, read()]).filter(([, value]) => value !== undefined)),
  };
}

/** Resolve references of a schema, and drop the alternative null. */
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

/** The title of a field: the beginning of its description if that is short, and its name in the API. */
function titleOf(name, { title, description }, isNeeded) {
  const [, clause] = /^([^.:;,(]{12,60})[.:;,(]/.exec(`${plain(description) ?? ""}.`) ?? [];
  const said = clause?.trim() ?? title ?? name.replaceAll("_", " ");
  const words = said[0].toUpperCase() + said.slice(1);
  return [words, isNeeded ? " (required)" : null, words.toLowerCase() === name ? null : [" ", h("code", {}, name)]];
}

function controlFor(name, about, isNeeded) {
  if (about.type === "object" && about.properties) return groupFor(name, about);
  const title = titleOf(name, about, isNeeded);
  const described = plain(about.description);
  const isWhole = title[0].toLowerCase() === described?.replace(/\.$/, "").toLowerCase(); // the title already says it
  const hint = [isWhole ? null : described, bounds(about)].filter(Boolean).join(" ") || null;
  const initial = about.default;
  const cleared = about.isOptional ? null : undefined;
  const attributes = { name, required: isNeeded };
  const typed = (type, props, parse, more = null) =>
    typedField(name, title, h("input", { ...attributes, type, ...props }), [hint, more].filter(Boolean).join(" ") || null, parse);
  if (about.type === "boolean" && !about.isOptional) {
    const control = h("input", { type: "checkbox", name, checked: initial === true, id: newId(`param-${name}`) });
    const said = hint ? h("p", { class: "hint" }, hint) : null;
    const element = h("div", { class: "field check" }, control, h("label", { for: control.id }, title), said);
    return { element, read: () => (control.checked === (initial === true) ? undefined : control.checked) };
  }
  if (about.enum || about.const || about.type === "boolean") {
    const words = about.enum ?? (about.const ? [about.const] : [true, false]);
    const options = words.map((word) => h("option", { value: String(word), selected: word === initial }, String(word)));
    const unset = h("option", { value: "" }, initial === null ? "none (default)" : "default");
    const control = h("select", attributes, about.isOptional || initial === undefined ? unset : null, options);
    return typedField(name, title, control, hint, (text) => words.find((word) => String(word) === text) ?? cleared);
  }
  if (about.format === "unix-time") {
    const control = h("input", { ...attributes, type: "datetime-local", step: "1" });
    return typedField(name, title, control, "Your local time.", (text) => new Date(text).getTime() / 1000);
  }
  if (about.type === "integer" || about.type === "number") {
    const step = about.type === "integer" ? "1" : "any";
    const placeholder = initial === null ? "not set" : null;
    const range = { step, min: about.minimum, max: about.maximum, value: initial ?? "", placeholder };
    return typed("number", range, (text) => (text === "" ? cleared : Number(text)));
  }
  if (about.type === "string") {
    return typed("text", { maxlength: about.maxLength, value: initial ?? "" }, (text) => text || (about.isOptional ? null : ""));
  }
  if (about.type === "array") {
    const isNumber = ["integer", "number"].includes(resolved(about.items ?? {}, about).type);
    const value = (initial ?? []).join(", ");
    return typed("text", { value, autocomplete: "off" }, (text) => {
      const words = text.split(",").map((one) => one.trim()).filter(Boolean);
      if (isNumber && words.some((one) => !Number.isFinite(Number(one)))) throw new Error(`${name}: numbers with commas between them`);
      return isNumber ? words.map(Number) : words;
    }, "Separate with commas.");
  }
  const value = initial === undefined || initial === null ? "" : JSON.stringify(initial);
  return typed("text", { class: "mono", value, placeholder: "JSON" }, (text) => {
    if (text === "" && about.isOptional) return null;
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`${name}: not JSON`);
    }
  }, "As JSON.");
}

/** A field whose text is parsed, unless it is unchanged. */
function typedField(name, title, control, hint, parse) {
  const first = control.value;
  return {
    element: field(title, control, hint),
    read() {
      if (!control.checkValidity()) throw new Error(`${name}: ${control.validationMessage}`);
      return control.value === first ? undefined : parse(control.value);
    },
  };
}

/** The fields of an object, as a group. */
function groupFor(name, about) {
  const form = formOf({ ...about, required: [] }, { initial: about.default ?? {} });
  const legend = name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
  return {
    element: h("fieldset", { class: "all group" }, h("legend", {}, legend), about.description ? h("p", { class: "hint" }, plain(about.description).split(". ")[0]) : null, form.element),
    read() {
      const given = form.values();
      return Object.keys(given).length ? given : undefined;
    },
  };
}

const plain = (text) => text?.replaceAll("`", "").replace(/\s+/g, " ").trim();

function bounds({ minimum, maximum }) {
  if (minimum !== undefined && maximum !== undefined) return `From ${minimum} to ${maximum}.`;
  if (minimum !== undefined) return `At least ${minimum}.`;
  return maximum === undefined ? null : `At most ${maximum}.`;
}
