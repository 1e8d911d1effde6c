"""The chat page for people without a mouse, with weak eyes or with a screen reader."""

import pytest
from selenium.webdriver.common.keys import Keys

from scripted_server import words
from tessera_server import eventually

pytestmark = pytest.mark.browser

MARKDOWN = "# Head\n\nText `code` [link](https://example.org)\n\n> quote\n\n```py\nx\n```\n\n| a |\n|--|\n| b |"

# The contrast of each text with its background, by WCAG 2.2, and of each unnamed control.
CONTRAST = """
const parse = (c) => { const n = c.match(/[\\d.]+/g).map(Number); return c.startsWith('color(')
  ? [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1]; };
const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
function behind(e) {
  const layers = [];
  for (let at = e; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
}
const failing = [];
for (const e of document.querySelectorAll('body *')) {
  if (!e.checkVisibility({ visibilityProperty: true }) || e.closest('.unseen, .skip, [disabled], svg, script')) continue;
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim() !== '') || e.matches('input, textarea, select');
  if (!own) continue;
  const style = getComputedStyle(e);
  const back = behind(e);
  const a = light(over(parse(style.color), back)), b = light(back);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
  if (ratio < (large ? 3 : 4.5)) failing.push(`${e.localName}.${e.className} "${e.textContent.trim().slice(0, 30)}": ${ratio.toFixed(2)}`);
}
return failing;
"""

UNNAMED = """
return [...document.querySelectorAll('button, input, select, textarea, a, [role=region], dialog, nav, aside, [role=img]')]
  .filter((e) => e.checkVisibility() && !(e.ariaLabel || e.textContent.trim() || e.title || e.labels?.length
    || document.getElementById(e.getAttribute('aria-labelledby'))))
  .map((e) => e.outerHTML.slice(0, 100));
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_holds_and_every_control_has_a_name(page, scripted, theme):
    page.js("document.documentElement.dataset.theme = arguments[0]", theme)
    scripted.answers = lambda body: words(MARKDOWN, 20)
    page.ask("A question")
    page.ask("Another")
    views = [lambda: None, page.panel, page.sidebar, lambda: page.click("#open-settings")]
    for view in views:
        if page.phone:
            page.press(Keys.ESCAPE)
        view()
        page.js("document.getAnimations().forEach((a) => a.finish())")
        assert page.js(CONTRAST) == []
        assert page.js(UNNAMED) == []
    page.press(Keys.ESCAPE)


def test_the_keyboard_alone_does_everything(page, scripted):
    page.type("First" + Keys.ENTER)
    eventually(lambda: page.texts(".message .body") == ["First", "Hello."], "sent by Enter")
    page.ended()
    page.press(Keys.CONTROL, Keys.SHIFT, "r")
    eventually(lambda: page.texts(".branch-number") == ["2 / 2"], "answered again")
    page.ended()
    page.press(Keys.CONTROL, Keys.SHIFT, "e")
    page.type("Changed ")
    page.press(Keys.CONTROL, Keys.ENTER)
    eventually(lambda: len(page.texts(".branch-number")) == 1 and "Changed" in page.texts(".message .body")[0], "edited")
    page.ended()
    page.press(Keys.CONTROL, Keys.SHIFT, "o")
    eventually(lambda: page.all(".welcome"), "a new chat")
    page.type("Second")
    page.press(Keys.SHIFT, Keys.ENTER)
    page.type("line" + Keys.ENTER)
    eventually(lambda: page.texts(".message .body")[:1] == ["Second\nline"], "two lines")
    page.ended()
    page.press(Keys.F2)
    page.type("Named" + Keys.ENTER)
    eventually(lambda: page.find("#title").text == "Named", "renamed")
    page.press(Keys.CONTROL, ",")
    eventually(lambda: page.js("return document.activeElement.id") == "system", "the settings")
    page.type("Be brief." + Keys.TAB + "0.2" + Keys.ENTER)
    eventually(lambda: not page.js("return document.querySelector('#settings').open"), "saved by Enter")
    page.press(Keys.CONTROL, "k")
    page.type("Chang")
    eventually(lambda: len(page.all("#chats .open")) == 1, "the search")
    page.type(Keys.TAB + Keys.ENTER)
    eventually(lambda: "Changed" in page.texts(".message .body")[0], "opened from the list")
    page.press(Keys.CONTROL, "/")
    eventually(lambda: page.js("return document.querySelector('#keys').open"), "the list of keys")
    page.press(Keys.ESCAPE)
    page.press(Keys.CONTROL, ".")
    page.press(Keys.CONTROL, "b")


def test_tab_reaches_every_control_and_shows_where_it_is(page, scripted):
    scripted.answers = lambda body: words(MARKDOWN, 20)
    page.ask("A question")
    wanted = page.js("""return [...document.querySelectorAll('#main button, #main textarea, #main select, #main a')]
      .filter((e) => !e.disabled && e.checkVisibility()).length""")
    page.js("document.activeElement.blur(); document.querySelector('#toggle-sidebar').focus()")
    seen = page.js("return [document.activeElement.outerHTML]")
    for _ in range(40):
        page.press(Keys.TAB)
        inside, html, outline = page.js(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [!!e.closest('#main'), e.outerHTML, s.outlineStyle !== 'none' || e.id === 'input']")
        if inside and html not in seen:
            assert outline, html
            seen.append(html)
    assert len(seen) >= wanted


def test_a_drawer_over_the_page_keeps_the_focus_and_gives_it_back(page):
    if not page.phone:
        pytest.skip("only a narrow page has drawers")
    for button, drawer in [("#toggle-sidebar", "#sidebar"), ("#toggle-panel", "#panel")]:
        page.click(button)
        assert page.js("return document.activeElement.closest(arguments[0]) !== null", drawer)
        assert page.js("return document.querySelector('#main').inert")
        page.press(Keys.ESCAPE)
        assert page.js("return '#' + document.activeElement.id") == button
        assert not page.js("return document.querySelector('#main').inert")


def test_an_answer_is_announced_once_and_not_word_by_word(page, scripted):
    page.js("""window.said = []; new MutationObserver(() => window.said.push(
      document.querySelector('#announcer').textContent)).observe(document.querySelector('#announcer'), { childList: true })""")
    scripted.answers = lambda body: words("Some words of an answer.", 2)
    page.ask("?")
    eventually(lambda: "Answered: Some words of an answer." in page.js("return window.said"), "the announcement")
    assert page.js("return document.querySelector('#log').ariaLive") == "off"
    assert len([s for s in page.js("return window.said") if s.startswith("Answered")]) == 1


def test_touch_targets_are_large_enough(page, scripted):
    page.ask("?")
    size = 36 if page.phone else 24  # WCAG 2.2 wants 24
    small = page.js("return [...document.querySelectorAll('#top button, .foot button, #send')]"
                    ".map((e) => [e.ariaLabel, e.offsetWidth, e.offsetHeight])")
    assert [each for each in small if min(each[1:]) < size] == []


def test_the_system_s_theme_is_followed(page):
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    dark = page.js("return getComputedStyle(document.body).backgroundColor")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]})
    assert page.js("return getComputedStyle(document.body).backgroundColor") != dark
