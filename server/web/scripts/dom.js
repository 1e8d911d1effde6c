// DOM nodes from data. No text becomes markup here or elsewhere: the page has no innerHTML, and its
// policy (require-trusted-types-for) makes the browser refuse such an assignment.

const kSvg = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

// Sets attributes. A function is a listener of the event that its name says: { onclick: f }.
function assign(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  return element;
}

// Returns: an element. Children are nodes or text; null and false are left out.
export function el(tag, attributes = {}, ...children) {
  const element = assign(document.createElement(tag), attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = assign(document.createElementNS(kSvg, tag), attributes);
  element.append(...children);
  return element;
}

// Returns: an icon of the page's own symbols (page.html); decoration, so hidden from readers.
export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));
}

// A button that has only an icon. Its label is its name for readers and its tooltip.
export function iconButton(name, label, onclick, attributes = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label,
                        onclick, ...attributes }, icon(name));
}

// ---- a tree of plain data, and the smallest change of the DOM that shows it
// A virtual node is a text, or { tag, attributes, children }.

function create(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const element = assign(document.createElement(node.tag), node.attributes ?? {});
  for (const child of node.children ?? []) element.append(create(child));
  return element;
}

function sameAttributes(a = {}, b = {}) {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

function patchOne(dom, before, after) {
  if (before === after) return;
  if (typeof before === "string" && typeof after === "string") {
    // An answer mostly grows, and appending keeps the reader's selection.
    if (after.startsWith(before)) dom.appendData(after.slice(before.length));
    else dom.data = after;
    return;
  }
  if (typeof before === "string" || typeof after === "string" || before.tag !== after.tag ||
      !sameAttributes(before.attributes, after.attributes)) {
    dom.replaceWith(create(after));
    return;
  }
  patch(dom, before.children ?? [], after.children ?? []);
}

// Changes the children of `parent` from `before` to `after`, from child number `from` on.
// Requires: from there on, `parent` has the children that `before` made.
export function patch(parent, before, after, from = 0) {
  const common = Math.min(before.length, after.length);
  for (let i = 0; i < common; ++i) patchOne(parent.childNodes[from + i], before[i], after[i]);
  for (let i = common; i < after.length; ++i) parent.append(create(after[i]));
  for (let i = before.length; i > common; --i) parent.lastChild.remove();
}
