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
  if (about.type === "boolean" && !about.isOptional) {
    const control = h("input", { type: "checkbox", name, checked: initial === true, id: newId(`param-${name}`) });
    const element = h("div", { class: "field check" }, control, h("label", { for: control.id }, title), hint ? h("p", { class: "hint" }, hint) : null);
    return { element, read: () => (control.checked === (initial === true) ? undefined : control.checked) };
  }
  if (about.enum || about.const || about.type === "boolean") {
    const words = about.enum ?? (about.const ? [about.const] : [true, false]);
    const options = words.map((word) => h("option", { value: String(word), selected: word === initial }, String(word)));
    if (about.isOptional || initial === undefined) options.unshift(h("option", { value: "" }, about.default === null ? "none (default)" : "default"));
    const control = h("select", attributes, options);
    const first = control.value;
    return {
      element: field(title, control, hint),
      read: () => (control.value === first ? undefined : (words.find((word) => String(word) === control.value) ?? cleared)),
    };
  }
  if (about.format === "unix-time") {
    const control = h("input", { ...attributes, type: "datetime-local", step: "1" });
    return {
      element: field(title, control, "Your local time."),
      read() {
        if (!control.checkValidity()) throw new Error(`${name}: ${control.validationMessage}`);
        return control.value === "" ? undefined : new Date(control.value).getTime() / 1000;
      },
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
      element: field(title, control, hint),
      read() {
        if (!control.checkValidity()) throw new Error(`${name}: ${control.validationMessage}`);
        if (control.value === first) return undefined;
        return control.value === "" ? cleared : Number(control.value);
      },
    };
  }
  if (about.type === "string") {
    const control = h("input", { ...attributes, type: "text", maxlength: about.maxLength, value: initial ?? "" });
    return { element: field(title, control, hint), read: () => (control.value === (initial ?? "") ? undefined : control.value || (about.isOptional ? null : "")) };
  }
  if (about.type === "array") return listFor(name, title, hint, attributes, initial ?? [], resolved(about.items ?? {}, about));
  const first = initial === undefined || initial === null ? "" : JSON.stringify(initial);
  const control = h("input", { ...attributes, type: "text", class: "mono", value: first, placeholder: "JSON" });
  return {
    element: field(title, control, [hint, "As JSON."].filter(Boolean).join(" ")),
    read() {
      if (control.value === first) return undefined;
      if (control.value === "" && about.isOptional) return null;
      try {
        return JSON.parse(control.value);
      } catch {
        throw new Error(`${name}: not JSON`);
      }
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

/** A field for several words or numbers, separated by commas. */
function listFor(name, title, hint, attributes, initial, items) {
  const control = h("input", { ...attributes, type: "text", value: initial.join(", "), autocomplete: "off" });
  const first = control.value;
  const isNumber = ["integer", "number"].includes(items.type);
  return {
    element: field(title, control, [hint, "Separate with commas."].filter(Boolean).join(" ")),
    read() {
      if (control.value === first) return undefined;
      const words = control.value.split(",").map((one) => one.trim()).filter(Boolean);
      if (isNumber && words.some((one) => !Number.isFinite(Number(one)))) throw new Error(`${name}: numbers with commas between them`);
      return isNumber ? words.map(Number) : words;
    },
  };
}

const plain = (text) => text?.replaceAll("`", "").replace(/\s+/g, " ").trim();

function bounds({ minimum, maximum }) {
  if (minimum !== undefined && maximum !== undefined) return `From ${minimum} to ${maximum}.`;
  if (minimum !== undefined) return `At least ${minimum}.`;
  return maximum === undefined ? null : `At most ${maximum}.`;
}
