// Creates elements. Data become only text and attributes; nothing here parses markup.

import { legible } from "./format.js";
import { TERMS } from "./terms.js";

/**
 * An element: `h("p", {class: "note", onclick: f}, "text", child)`. False and null children are left out. A button submits
 * its form only if that is its type.
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button";
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

const present = (children) => children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);

/** Replace the children of an element; false and null ones are left out. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/**
 * Like `fill`, for periodic updates. Elements that are already there stay, and tables of the same name are updated in
 * place, which keeps focus and scroll position. If the focused element is replaced, the new element of the same name gets
 * the focus, or else its table.
 */
export function refill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const around = focused?.closest(".scroll");
  const shown = present(children).map((one) => kept(element, one));
  for (const one of [...element.childNodes]) if (!shown.includes(one)) one.remove();
  let next = element.firstChild;
  for (const one of shown) {
    if (one === next) next = one.nextSibling;
    else element.insertBefore(one, next);
  }
  if (!focused || focused.isConnected) return;
  const again = [...element.querySelectorAll(focused.tagName)].find((one) => called(one) === called(focused));
  (again || (around?.isConnected ? around : null))?.focus({ preventScroll: true });
}

/**
 * Return the element to show: for a table, the present table of the same name with the new rows; for a problem that is
 * already shown, the present element, so that screen readers do not announce it again.
 */
function kept(element, made) {
  const kind = [".scroll", ".problem"].find((one) => made.matches?.(one));
  const there = kind && [...element.children].find((one) => one.matches(kind) && called(one) === called(made));
  if (there && there !== made && kind === ".scroll") there.replaceChildren(...made.childNodes);
  return there || made;
}

const called = (one) => one.dataset.said ?? one.getAttribute("aria-label") ?? one.textContent;

let lastId = 0;

/** Return a unique element id. */
export function newId(name) {
  lastId += 1;
  return `${name}-${lastId}`;
}

/** A label above a control, and a hint below it. */
export function field(label, control, hint = null) {
  if (!control.id) control.id = newId("field");
  const said = hint ? h("p", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  if (said) control.setAttribute("aria-describedby", said.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, said);
}

/** Radio buttons side by side: `options` are [value, words]. */
export function choice(label, options, chosen, use) {
  const name = newId("choice");
  return h("div", { class: "choice", role: "radiogroup", "aria-label": label }, options.map(([value, said]) =>
    h("label", {}, h("input", { type: "radio", name, value: String(value), checked: value === chosen, onchange: () => use(value) }), said)));
}

/** A part of a page with a heading. */
export function card(title, ...children) {
  const id = newId("card");
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
}

/** A notice for an empty list: what is missing, and what to do next. */
export function empty(title, ...next) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, next));
}

/** A term with its explanation as a tooltip, for hover, focus and touch; words without one are plain text. */
export function term(word) {
  if (!Object.hasOwn(TERMS, word)) return word;
  const tip = h("span", { role: "tooltip", popover: "manual", class: "tip", id: newId("tip") }, TERMS[word]);
  const show = () => {
    const { left, bottom } = button.getBoundingClientRect();
    tip.showPopover();
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${bottom + 4}px`;
  };
  const hide = () => tip.isConnected && tip.hidePopover();
  const button = h("button", {
    class: "term", "aria-describedby": tip.id,
    onmouseenter: show, onfocus: show, onclick: show, onmouseleave: hide, onblur: hide,
    onkeydown: (event) => event.key === "Escape" && hide(),
  }, word);
  return h("span", {}, button, tip);
}

/** Facts with their names: `[[name, fact]...]`. */
export const facts = (rows) => h("dl", { class: "facts" }, rows.map(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)]));

/** A table; cells are text or elements. Columns named "#..." hold numbers, a last column without a name holds buttons. */
export function table(caption, columns, rows) {
  const isNumber = columns.map((name) => name.startsWith("#"));
  const cell = (tag, value, at, props = {}) => h(tag, { ...props, class: isNumber[at] ? "number" : null }, value);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${caption}` },
    h("table", { class: columns.at(-1) === "" ? "acts" : null },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((name, at) => cell(name ? "th" : "td", headed(name.replace("#", "")), at, name ? { scope: "col" } : {})))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, at) => cell("td", value, at))))),
    ),
  );
}

/** A name with optional line breaks after `_`, `-` and `/`. */
export const breakable = (name) => name.split(/(?<=[_/-])/).flatMap((part, at) => (at ? [h("wbr"), part] : [part]));

/** The name of a feature as a cell of a table. */
export const named = (name) => h("span", { class: "break" }, breakable(legible(name)));

/** The heading of a column, with explanations of its terms. */
const headed = (name) => name.split(/(, )/).map(term);

/** Debounce: call `work` once no call has come for `ms`, with the newest arguments. */
export function debounced(work, ms) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}

const TWICE_MS = 500;

/** Wait until a second click can no longer belong to a double click; `pressed`: `performance.now()` of the first. */
export function pastDoubleClick(pressed) {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, TWICE_MS - (performance.now() - pressed))));
}

/**
 * Return `work` so that it runs once at a time, and that a double click runs it once; `work` may return when it was last
 * clicked. Meanwhile its button is disabled, but can be reached by keyboard. The event that asks for it does nothing else.
 */
export function single(work, button = null) {
  let isBusy = false;
  const hold = (is) => {
    isBusy = is;
    button?.setAttribute("aria-disabled", String(is));
  };
  return async (event = null) => {
    event?.preventDefault();
    if (isBusy) return;
    const pressed = event ? performance.now() : 0;
    hold(true);
    await pastDoubleClick((await work()) ?? pressed);
    hold(false);
  };
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("said").textContent = text;
}

/** Ask for confirmation in a dialog; return whether it was given. */
export function confirmed(title, text, yes) {
  return new Promise((resolve) => {
    const heading = newId("dialog");
    const dialog = h("dialog", { "aria-labelledby": heading, class: "dialog" },
      h("h2", { id: heading }, title),
      h("p", { class: "break" }, text),
      h("form", { method: "dialog", class: "row end" },
        h("button", { type: "submit", value: "no", class: "quiet" }, "Leave it"),
        h("button", { type: "submit", value: "yes", class: /^(Delete|Revoke|Retire)/.test(yes) ? "primary danger" : "primary" }, yes),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
