"""Features of the chat page, one by one, at both sizes."""

import csv
import io
import json
import time

import pytest
from selenium.webdriver.common.keys import Keys

from scripted_server import refusal, text, words
from tessera_server import eventually

pytestmark = pytest.mark.browser


def bodies(page):
    return page.texts(".message .body")


def chats(page):
    page.sidebar()
    return page.texts("#chats .open")


def close_drawer(page):
    if page.phone:
        page.press(Keys.ESCAPE)


# ---- the list of chats

def test_chats_are_listed_opened_and_survive_a_reload(page):
    page.ask("The first question")
    page.press(Keys.CONTROL, Keys.SHIFT, "o")
    page.ask("The second question")
    page.reload()
    eventually(lambda: chats(page) == ["The second question", "The first question"], "both chats")
    page.all("#chats .open")[1].click()
    eventually(lambda: bodies(page) == ["The first question", "Hello."], "the first chat")
    assert page.find("#title").text == "The first question"


def test_a_chat_is_renamed_and_keeps_its_name(page):
    page.ask("Old name")
    page.menu("Rename")
    page.find("#rename-text").clear()
    page.find("#rename-text").send_keys("New name", Keys.ENTER)
    eventually(lambda: chats(page) == ["New name"], "the new name")
    page.reload()
    eventually(lambda: chats(page) == ["New name"], "the new name after a reload")


def test_search_finds_words_of_titles_questions_and_answers(page, scripted):
    scripted.answers = lambda body: words(f"You wrote {len(body['messages'])} lines about llamas"
                                          if "wool" in body["messages"][-1]["content"] else "Yes.")
    page.ask("Is wool warm?")
    page.press(Keys.CONTROL, Keys.SHIFT, "o")
    page.ask("Is stone cold?")
    page.sidebar()
    for query, found in [("LLAMAS", ["Is wool warm?"]), ("stone", ["Is stone cold?"]),
                         ("nowhere", []), ("", ["Is stone cold?", "Is wool warm?"])]:
        page.find("#search").clear()
        page.find("#search").send_keys(query or " ")
        eventually(lambda: page.texts("#chats .open") == found, f"what has '{query}'")


def test_a_deleted_chat_is_gone_unless_it_is_taken_back(page):
    page.ask("Keep me")
    page.menu("Delete")
    eventually(lambda: chats(page) == [], "an empty list")
    page.click("#toasts button")
    eventually(lambda: chats(page) == ["Keep me"], "the chat is back")
    page.menu("Delete")
    eventually(lambda: chats(page) == [], "an empty list")
    page.reload()
    assert chats(page) == []


def test_a_chat_that_is_deleted_while_it_streams_stays_deleted(page, scripted):
    scripted.answers = lambda body: [text("Slow"), *[0.1] * 20]
    page.ask("?", wait=False)
    eventually(lambda: bodies(page)[-1:] == ["Slow"], "some text")
    page.menu("Delete")
    time.sleep(1)
    assert chats(page) == []
    page.reload()
    assert chats(page) == []


def test_an_export_imports_as_it_was(page, tmp_path, scripted):
    scripted.answers = lambda body: words("An **answer**.")
    page.settings(temperature="0.3", system="Be brief.")
    page.ask("A question")
    name, exported = page.downloads(lambda: page.menu("Export as JSON"))
    assert name == "A-question.json"
    page.menu("Delete")
    file = tmp_path / name
    file.write_text(exported)
    page.import_file(file)
    eventually(lambda: chats(page) == ["A question"], "the imported chat")
    page.click("#chats .open")
    eventually(lambda: bodies(page) == ["A question", "An answer."], "its messages")
    page.ask("Another")
    assert scripted.body["temperature"] == 0.3
    assert [m["content"] for m in scripted.body["messages"]] == [
        "Be brief.", "A question", "An **answer**.", "Another"]


def test_a_chat_exports_as_markdown_and_csv(page):
    page.ask("A question")
    assert page.downloads(lambda: page.menu("Export as Markdown"))[1] == (
        "# A question\n\n**You**\n\nA question\n\n**Assistant**\n\nHello.\n")
    close_drawer(page)
    rows = list(csv.reader(io.StringIO(page.downloads(lambda: page.menu("Export figures as CSV"))[1])))
    assert rows[0][:2] == ["role", "text"]
    assert [row[:2] for row in rows[1:]] == [["user", "A question"], ["assistant", "Hello."]]


# ---- messages

def test_markdown_is_shown_as_it_means(page, scripted):
    scripted.answers = lambda body: words(
        "# Head\n\nA *word*, a **bold** one, `code` and ~~gone~~.\n\n- one\n- two\n  - inner\n\n3. three\n\n"
        "| a | b |\n|--|--:|\n| 1 | 2 |\n\n> quoted\n\n```python\nprint('x < y & z')\n```\n\n"
        "[site](https://example.org/a) https://example.net\n\n---\nend", 3)
    page.ask("?")
    shown = lambda selector: page.texts(f".message.assistant .markdown {selector}")
    assert shown(".h1") == ["Head"]
    assert shown("em") == ["word"] and shown("strong") == ["bold"] and shown("s") == ["gone"]
    assert shown("p > code") == ["code"]
    assert shown("ul > li")[0] == "one" and shown("ul ul > li") == ["inner"]
    assert page.js("return document.querySelector('.markdown ol').start") == 3
    assert shown("th") == ["a", "b"] and shown("td.right") == ["2"]
    assert shown("blockquote") == ["quoted"]
    assert shown("pre code") == ["print('x < y & z')"]
    assert page.js("return [...document.querySelectorAll('.markdown a')].map(a => [a.href, a.rel, a.target])") == [
        ["https://example.org/a", "noopener noreferrer", "_blank"],
        ["https://example.net/", "noopener noreferrer", "_blank"]]
    assert len(page.all(".markdown hr")) == 1


@pytest.mark.parametrize("step", [1, 2, 5, 17])
def test_markdown_does_not_depend_on_the_pieces_it_came_in(page, scripted, step):
    source = ("1. a\n\n2. b\n   para\n\n[x]: https://example.org\n\n* p\n\n* q\n\nText\n===\n\n[x] and more\n"
              "````\n```\n````\n| a |\n|--|\n| b |\n\n    code\n\n    more\n\nend <b>\n\n- a\n\n-- b")
    scripted.answers = lambda body: words(source, step)
    page.ask("pieces")
    scripted.answers = lambda body: words(source, len(source))
    page.ask("whole")
    pieces, whole = page.js("return [...document.querySelectorAll('.message.assistant .body > .markdown')]"
                            ".map(e => e.outerHTML)")
    assert pieces == whole


def test_code_and_answers_are_copied(page, scripted):
    scripted.answers = lambda body: words("Look:\n\n```sh\nls -l\n```\n")
    page.ask("?")
    page.js("window.copied = []; navigator.clipboard.writeText = async (t) => { window.copied.push(t); };")
    page.click(".code-copy")
    eventually(lambda: page.texts(".code-copy") == ["Copied"], "the button says so")
    page.click(".message.assistant [aria-label=Copy]")
    assert page.js("return window.copied") == ["ls -l", "Look:\n\n```sh\nls -l\n```\n"]


def test_editing_and_answering_again_make_branches(page, scripted):
    count = iter(range(1, 100))
    scripted.answers = lambda body: words(f"Answer {next(count)}")
    page.ask("One")
    page.ask("Two")
    page.js("document.querySelector('.message.user [aria-label=Edit]').click()")
    page.find(".editor").clear()
    page.find(".editor").send_keys("Other", Keys.CONTROL, Keys.ENTER)
    eventually(lambda: bodies(page) == ["Other", "Answer 3"], "the new branch")
    page.ended()
    assert page.texts(".branch-number") == ["2 / 2"]
    page.js("document.querySelector('[aria-label=\"Answer again\"]').click()")
    eventually(lambda: bodies(page) == ["Other", "Answer 4"], "another answer")
    page.ended()
    assert [m["content"] for m in scripted.body["messages"]] == ["Other"]
    page.js("document.querySelector('.message.user [aria-label=\"Previous version\"]').click()")
    eventually(lambda: bodies(page) == ["One", "Answer 1", "Two", "Answer 2"], "the first branch")
    page.reload()
    page.sidebar()
    page.click("#chats .open")
    eventually(lambda: bodies(page) == ["One", "Answer 1", "Two", "Answer 2"], "the branch is remembered")


def test_a_stopped_answer_stays_and_is_continued(page, scripted):
    def answer(body):
        if body.get("continue_final_message"):
            return words(" and ends.")
        return [*words("It begins"), *[0.1] * 300]
    scripted.answers = answer
    page.ask("?", wait=False)
    eventually(lambda: bodies(page)[-1] == "It begins", "the beginning")
    page.press(Keys.ESCAPE)
    page.ended()
    page.click("[aria-label=Continue]")
    eventually(lambda: bodies(page)[-1] == "It begins and ends.", "the end")
    page.ended()
    assert scripted.body["messages"][-1] == {"role": "assistant", "content": "It begins"}


def test_a_server_without_continuation_is_sent_the_tokens(page, scripted):
    def answer(body):
        if "prompt" in body:
            return [{"choices": [{"index": 0, "text": " more", "finish_reason": "stop"}]}]
        if "continue_final_message" in body:
            return refusal("continue_final_message is not supported by this server", "continue_final_message")
        return words("Some")
    scripted.answers = answer
    page.ask("?")
    page.click("[aria-label=Continue]")
    eventually(lambda: bodies(page)[-1] == "Some more", "the continuation")
    assert [path for path, _ in scripted.bodies[-3:]] == ["/tokenize", "/tokenize", "/v1/completions"]
    assert scripted.body["prompt"] == [1, 2, 3, 1, 2, 3]


def test_an_error_is_told_kept_and_not_sent_again(page, scripted):
    scripted.answers = lambda body: refusal("the prompt is <b>too</b> long")
    page.ask("One")
    assert page.texts(".note.error") == ["the prompt is <b>too</b> long"]
    scripted.answers = lambda body: [*words("Par"), {"error": {"message": "the engine stopped"}}]
    page.ask("Two")
    assert page.texts(".note.error")[-1] == "the engine stopped"
    assert bodies(page)[-1].startswith("Par")
    scripted.answers = lambda body: words("Fine.")
    page.ask("Three")
    assert [m["content"] for m in scripted.body["messages"]] == ["One", "Two", "Par", "Three"]


def test_reasoning_is_folded_in_either_form(page, scripted):
    scripted.answers = lambda body: [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm, **two**."}}]}, text("Two.")]
    page.ask("1 + 1?")
    scripted.answers = lambda body: words("<think>\nThree it is.\n</think>\n\nThree.")
    page.ask("1 + 2?")
    assert page.texts(".message.assistant .body > .markdown") == ["Two.", "Three."]
    assert not any(page.js("return [...document.querySelectorAll('.reasoning')].map(d => d.open)"))
    for summary in page.all(".reasoning summary"):
        page.js("arguments[0].click()", summary)
    assert page.texts(".reasoning .markdown") == ["Hm, two.", "Three it is."]


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def call(index, **fields):
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, **fields}]}}]}


def test_tool_calls_are_shown_and_answered(page, scripted):
    scripted.answers = lambda body: words("Rain.") if body["messages"][-1]["role"] == "tool" else [
        call(0, id="c0", function={"name": "weather", "arguments": "{\"city\":"}),
        call(0, function={"arguments": "\"Bonn\"}"}), call(1, id="c1", function={"name": "weather", "arguments": "{}"})]
    page.settings(tools=json.dumps(TOOLS), tool_choice="weather")
    page.ask("Does it rain?")
    assert scripted.body["tools"] == TOOLS
    assert scripted.body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert page.texts(".call-head") == ["weather", "weather"]
    assert page.texts(".call pre")[0] == '{\n  "city": "Bonn"\n}'
    for area, result in zip(page.all(".results textarea"), ["wet", "dry"]):
        area.send_keys(result)
    page.click(".results button")
    eventually(lambda: "Rain." in bodies(page), "the answer")
    assistant, *tools = scripted.body["messages"][1:]
    assert assistant["tool_calls"][0] == {"id": "c0", "type": "function",
                                          "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
    assert tools == [{"role": "tool", "tool_call_id": "c0", "content": "wet"},
                     {"role": "tool", "tool_call_id": "c1", "content": "dry"}]


def test_a_schema_is_sent_its_answer_set_out_and_its_refusal_told(page, scripted):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    scripted.answers = lambda body: words('{"a":1}')
    page.settings(schema=json.dumps(schema))
    page.ask("?")
    assert scripted.body["response_format"]["json_schema"]["schema"] == schema
    assert page.texts("pre code") == ['{\n  "a": 1\n}']
    scripted.answers = lambda body: refusal("response_format is not supported by this server", "response_format")
    page.ask("again")
    assert page.texts(".note.error") == ["response_format is not supported by this server"]


# ---- settings

def test_every_setting_reaches_the_request(page, scripted):
    page.settings(system="Sys", temperature="0.5", top_p="0.9", top_k="40", min_p="0.05",
                  repetition_penalty="1.1", presence_penalty="0.2", frequency_penalty="-0.5",
                  max_tokens="77", min_tokens="3", seed="42", stop="END\n###", logit_bias='{"5": -100}',
                  ignore_eos=True, deterministic=True, kv_preset="snapkv", kv_fields="keep_share=0.5\nhigh=k8v4",
                  cache_accept="k4v2", cache_salt="mine", no_cache=True)
    page.ask("?")
    sent = {name: value for name, value in scripted.body.items()
            if name not in ("messages", "stream", "stream_options")}
    assert sent == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
                    "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.5,
                    "max_tokens": 77, "min_tokens": 3, "seed": 42, "stop": ["END", "###"],
                    "logit_bias": {"5": -100}, "ignore_eos": True, "deterministic": True,
                    "kv_cache": {"preset": "snapkv", "keep_share": 0.5, "high": "k8v4"},
                    "cache": {"accept": "k4v2"}, "cache_salt": "mine", "cache_prompt": False}
    assert scripted.body["messages"][0] == {"role": "system", "content": "Sys"}
    page.click("#open-settings")
    page.click("#settings-reset")
    page.click("#settings-save")
    page.ask("??")
    assert set(scripted.body) == {"messages", "stream", "stream_options"}


@pytest.mark.parametrize("name,value,problem", [
    ("temperature", "101", "Temperature: must be 0 to 100."), ("top_k", "1.5", "Top k: must be a whole number."),
    ("schema", "{", "JSON schema of the answer: "), ("tools", "{}", "Tools: must be a JSON array."),
    ("kv_fields", "keep", "Changed fields: each line must be name=value.")])
def test_a_wrong_setting_is_told_and_not_saved(page, name, value, problem):
    page.settings(**{name: value})
    assert page.texts("#settings-problem")[0].startswith(problem)
    assert page.js("return document.activeElement.id") == f"setting-{name}"
    assert page.js("return document.querySelector('#settings').open")


def test_each_served_preset_has_a_sentence(real_page, server):
    eventually(lambda: real_page.js("return document.querySelector('#model').value"), "the server")
    real_page.click("#open-settings")
    names = real_page.js("return [...document.querySelectorAll('#setting-kv_preset option')].map(o => o.value)")
    assert len(names) >= 2
    for name in names:
        real_page.js("const e = document.querySelector('#setting-kv_preset'); e.value = arguments[0];"
                     "e.dispatchEvent(new Event('change'))", name)
        sentence = real_page.texts("#setting-kv_preset-help")[0]
        assert len(sentence) > 30 and sentence.endswith("."), (name, sentence)


def test_one_of_several_models_is_chosen_for_a_chat(page, scripted):
    scripted.models = ["small-model", "a-model-with-a-very-long-name-that-does-not-fit"]
    page.reload()
    eventually(lambda: len(page.all("#model option")) == 2, "both models")
    page.js("const e = document.querySelector('#model'); e.value = arguments[0];"
            "e.dispatchEvent(new Event('change'))", scripted.models[1])
    page.ask("?")
    assert scripted.body["model"] == scripted.models[1]


# ---- the view

def test_it_fits_its_size(page, scripted):
    scripted.answers = lambda body: words("| " + " | ".join(["column"] * 30) + " |\n|" + "--|" * 30 + "\n\n"
                                          "```\n" + "x" * 500 + "\n```\n\n" + "w" * 500, 50)
    page.ask("long" * 100)
    assert page.js("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.js("const l = document.querySelector('#messages'); return l.scrollWidth - l.clientWidth") <= 0
    assert page.find("#send").is_displayed()
    assert page.js("return document.querySelector('#top').offsetHeight") <= 60, "the header is one line"


def test_the_box_grows_with_wrapped_text(page):
    height = lambda: page.js("return document.querySelector('#input').offsetHeight")
    one = height()
    page.find("#input").send_keys("no line ends here " * 12)
    assert height() > 1.5 * one
    hidden = page.js("const e = document.querySelector('#input'); return e.scrollHeight - e.clientHeight")
    assert hidden <= 1, "all of the text is seen"
    page.find("#input").clear()
    page.js("document.querySelector('#input').dispatchEvent(new Event('input'))")
    assert height() == one


def test_a_reader_who_scrolls_up_stays_there(page, scripted):
    line = "A line of the answer.\n\n"
    scripted.answers = lambda body: [*words(line * 60, 200), *[chunk for _ in range(60) for chunk in (0.05, text(line))]]
    page.ask("?", wait=False)
    top = lambda: page.js("return document.querySelector('#messages').scrollTop")
    eventually(lambda: top() > 300, "the view follows")
    page.js("document.querySelector('#messages').scrollTop = 100")
    time.sleep(0.8)
    assert top() == 100
    page.js("document.querySelector('#latest').click()")
    time.sleep(0.5)
    assert page.js("const e = document.querySelector('#messages'); return e.scrollHeight - e.scrollTop - e.clientHeight") < 48
    page.press(Keys.ESCAPE)
    page.ended()


def test_the_theme_is_chosen_and_remembered(page):
    back = lambda: page.js("return getComputedStyle(document.body).backgroundColor")
    page.sidebar()
    light = back()
    page.js("const e = document.querySelector('#theme'); e.value = 'dark'; e.dispatchEvent(new Event('change'))")
    dark = back()
    assert light != dark
    page.reload()
    assert back() == dark


def test_an_answer_goes_on_while_another_chat_is_open(page, scripted):
    scripted.answers = lambda body: [text("Slow"), 1.0, text(" done")]
    page.ask("First", wait=False)
    page.press(Keys.CONTROL, Keys.SHIFT, "o")
    scripted.answers = lambda body: words("Quick")
    page.ask("Second")
    assert bodies(page) == ["Second", "Quick"]
    time.sleep(1.2)
    page.sidebar()
    next(e for e in page.all("#chats .open") if e.text == "First").click()
    eventually(lambda: bodies(page) == ["First", "Slow done"], "the first answer is whole")


def test_a_reload_while_it_streams_keeps_what_arrived(page, scripted):
    scripted.answers = lambda body: [text("Kept"), 2.2, text(" text"), *[0.1] * 100]
    page.ask("?", wait=False)
    eventually(lambda: bodies(page)[-1] == "Kept text", "some text")
    time.sleep(0.5)
    page.reload()
    page.sidebar()
    page.click("#chats .open")
    eventually(lambda: bodies(page) and bodies(page)[-1].startswith("Kept"), "the text is back")
    assert page.texts(".note") == ["Stopped."]
