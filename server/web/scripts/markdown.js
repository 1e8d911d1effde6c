// Markdown as DOM nodes. markdown-it parses (CommonMark, tables, bare links; raw HTML stays text);
// the nodes are made here from its tokens, of known tags only.

import MarkdownIt from "markdown-it";
import { patch } from "./dom.js";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });  // only texts with http://

const kTags = new Set(["p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "thead", "tbody",
                       "tr", "th", "td", "h1", "h2", "h3", "h4", "h5", "h6"]);

// Returns: a link's address if it leads to another page or to a mail program, or null.
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, children) {
  const href = safeAddress(address);
  if (href === null) return { tag: "span", children };
  return { tag: "a", attributes: { href, target: "_blank", rel: "noopener noreferrer" }, children };
}

function codeBlock(token) {
  const language = /^[\w+#.-]{1,20}/.exec(token.info.trim())?.[0] ?? "";
  return { tag: "div", attributes: { class: "code" }, children: [
    { tag: "div", attributes: { class: "code-head" }, children: [
      { tag: "span", children: [language || "text"] },
      { tag: "button", attributes: { type: "button", class: "code-copy" }, children: ["Copy"] }] },
    { tag: "pre", attributes: { tabindex: "0", "aria-label": `Code, ${language || "text"}` },
      children: [{ tag: "code", children: [token.content.replace(/\n$/, "")] }] }] };
}

// Tokens without children of their own.
const kLeaves = {
  text: (token) => token.content,
  softbreak: () => "\n",
  hardbreak: () => ({ tag: "br" }),
  hr: () => ({ tag: "hr" }),
  code_inline: (token) => ({ tag: "code", children: [token.content] }),
  fence: codeBlock,
  code_block: codeBlock,
  // Loading an image would tell its server of the chat, so it becomes a link.
  image: (token) => link(token.attrGet("src"), [`image: ${token.content || token.attrGet("src")}`]),
};

function opened(token) {
  if (token.type === "link_open") return link(token.attrGet("href"), []);
  if (token.tag === "table") {
    return { tag: "div", attributes: { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
             children: [{ tag: "table", children: [] }] };
  }
  const attributes = {};
  const align = /^text-align:(center|right)$/.exec(token.attrGet("style") ?? "");
  if (align) attributes.class = align[1];
  if (token.tag === "ol" && token.attrGet("start")) attributes.start = token.attrGet("start");
  const tag = kTags.has(token.tag) ? token.tag : "span";
  // The page has headings of its own: those of an answer rank below them.
  const heading = /^h([1-6])$/.exec(tag);
  if (heading) attributes.class = tag;
  return { tag: heading ? `h${Math.min(6, Number(heading[1]) + 2)}` : tag, attributes, children: [] };
}

// Returns: virtual nodes (dom.js) of markdown-it's tokens.
function nodesOf(tokens) {
  const roots = [];
  const open = [roots];
  for (const token of tokens) {
    const into = open[open.length - 1];
    if (token.type === "inline") {
      into.push(...nodesOf(token.children));
    } else if (token.nesting > 0) {
      if (token.hidden) {  // the paragraph of a tight list's item
        open.push(into);
        continue;
      }
      const node = opened(token);
      into.push(node);
      open.push(token.tag === "table" ? node.children[0].children : node.children);
    } else if (token.nesting < 0) {
      open.pop();
    } else if (Object.hasOwn(kLeaves, token.type)) {
      const leaf = kLeaves[token.type](token);
      const last = into.length - 1;
      if (typeof leaf === "string" && typeof into[last] === "string") into[last] += leaf;
      else into.push(leaf);
    }
  }
  return roots;
}

// Returns: the position at which line number `line` of `text` begins.
function lineStart(text, line) {
  let position = 0;
  for (; line > 0; --line) position = text.indexOf("\n", position) + 1;
  return position;
}

// Shows a growing text in an element. Blocks before the last one no longer change, so only the text
// behind them is parsed again: the work for a new token does not grow with the whole answer.
export class MarkdownView {
  #element;
  #text = "";
  #settled = 0;       // position behind the blocks that no longer change
  #settledNodes = 0;  // child nodes of these blocks
  #tail = [];         // virtual nodes of the rest

  constructor(element) {
    this.#element = element;
  }

  update(text) {
    if (!text.startsWith(this.#text)) this.#reset();
    this.#text = text;
    const rest = text.slice(this.#settled);
    const tokens = parser.parse(rest, {});
    this.#show(nodesOf(tokens));
    this.#settle(rest, tokens);
  }

  // The whole text is known: parses it once more, for references to links defined further below.
  finish(text) {
    if (/^ {0,3}\[[^\]]+\]:/m.test(text)) this.#reset();
    this.update(text);
  }

  #show(nodes) {
    patch(this.#element, this.#tail, nodes, this.#settledNodes);
    this.#tail = nodes;
  }

  // A block is settled once a later one has begun, with a whole line: "2" may still become "2.",
  // the next item of the list before.
  #settle(rest, tokens) {
    const starts = tokens.filter((token) => token.level === 0 && token.nesting >= 0);
    const last = starts.at(-1);
    if (starts.length < 2 || !last.map) return;
    const begin = lineStart(rest, last.map[0]);
    if (rest.indexOf("\n", begin) < 0) return;
    this.#settled += begin;
    this.#settledNodes += this.#tail.length - 1;
    this.#tail = this.#tail.slice(-1);
  }

  #reset() {
    this.#element.replaceChildren();
    this.#text = "";
    this.#settled = 0;
    this.#settledNodes = 0;
    this.#tail = [];
  }
}
