"""The chat page before a real server, in a real browser: Debian's Chromium, headless."""

import re

import pytest

from page_browser import Page
from tessera_server import TesseraServer, eventually

pytestmark = pytest.mark.browser

# An answer of less than 50 ms has no rate.
FIGURES = (r"first token after [\d.]+ m?s · \d+ tokens?( · [\d.]+ tokens/s)?"
           r"( · \d+ % of the prompt cached)?( · stopped at the limit)?")


def test_an_answer_streams_in_is_stored_and_its_cache_is_shown(real_page, server):
    page = real_page
    page.settings(max_tokens=100, seed=7)
    page.ask("Tell me a story about a dog who lived near the forest.")
    question, answer = page.texts(".message .body")
    assert question == "Tell me a story about a dog who lived near the forest."
    assert len(answer) > 20
    assert re.fullmatch(FIGURES, page.texts(".figures")[0]), page.texts(".figures")
    page.ask("And then?")
    page.reload()
    page.sidebar()
    page.click("#chats .open")
    eventually(lambda: len(page.all(".message")) == 4, "the chat is back")
    assert page.texts(".message .body")[1] == answer
    page.panel()
    eventually(lambda: page.all(".tree .tile"), "the tree")
    assert " in f16" in page.texts("#panel-body")[0]
    cached = re.findall(r"(\d+) / (\d+)", "\n".join(page.texts(".turn-list")))
    assert len(cached) == 2 and int(cached[1][0]) >= 64, "the first turn is found in the cache"
    eventually(lambda: server.bytes_in_use() == 0, "the pages are free")


def test_stop_frees_the_pages(real_page, server):
    real_page.settings(ignore_eos=True)
    real_page.ask("Tell me a story about a cat.", wait=False)
    eventually(lambda: len(real_page.texts(".message .body")[-1]) > 5, "some text")
    real_page.click("#send")
    real_page.ended()
    eventually(lambda: server.bytes_in_use() == 0, "the pages are free")
    assert "Stopped." in real_page.texts(".note")[-1]


def test_a_refusal_is_shown_and_leaves_no_empty_turn(real_page):
    real_page.js("document.querySelector('#input').value = arguments[0]", "word " * 5000)
    real_page.ask(".")
    assert "2048" in real_page.texts(".note.error")[0]
    real_page.reload()
    real_page.sidebar()
    real_page.click("#chats .open")
    eventually(lambda: real_page.all(".note.error"), "the error is still told")


def test_a_continued_answer_goes_on_where_it_ended(real_page):
    page = real_page
    page.settings(max_tokens=12, seed=1)
    page.ask("Tell me a story about a bird.")
    before = page.texts(".message.assistant .markdown")[-1]
    page.click(".message.assistant [aria-label=Continue]")
    eventually(lambda: len(page.texts(".message.assistant .markdown")[-1]) > len(before), "more text")
    page.ended()
    assert page.texts(".message.assistant .markdown")[-1].startswith(before)
    assert not page.all(".note.error")


@pytest.mark.parametrize("preset", ["k8v4", "k4v2r"])
def test_a_preset_of_the_settings_reaches_the_cache(server, preset):
    page = Page(server.http + "/")
    try:
        eventually(lambda: page.js("return document.querySelector('#model').value"), "the server")
        page.settings(kv_preset="" if preset == "k8v4" else preset, max_tokens=8)
        page.ask("Hello")
        page.panel()
        eventually(lambda: f"Policy {preset}" in page.texts("#panel-body")[0], "the policy")
    finally:
        page.close()


def test_a_locked_server_lets_in_who_knows_the_key():
    with TesseraServer("--api-key", "sesame") as locked:
        page = Page(locked.http.replace("http://", "http://me:sesame@") + "/")
        try:
            page.settings(max_tokens=8)
            page.ask("Tell me a story about a dog.")
            assert not page.all(".note.error")
            page.panel()
            eventually(lambda: page.texts(".lead"), "the cache's figures")
        finally:
            page.close()
        page = Page(locked.http.replace("http://", "http://me:wrong@") + "/")
        try:
            assert not page.all("#input")
        finally:
            page.close()
