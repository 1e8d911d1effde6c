"""The chat page in a real browser: Debian's Chromium, headless."""

import re

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tessera_server import TesseraServer, eventually

pytestmark = pytest.mark.browser
PHONE = (390, 844)


def browser(url):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    # The page must need no address other than the server's own.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.set_window_size(*PHONE)
    driver.get(url)
    return driver


@pytest.fixture
def page(server):
    driver = browser(server.http + "/")
    yield driver
    driver.quit()


def ask(page, text):
    page.find_element(By.ID, "input").send_keys(text, Keys.ENTER)


def texts(page, selector):
    return [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]


def send_button(page):
    return page.find_element(By.ID, "send")


def test_an_answer_streams_in_and_its_speed_is_shown(page, server):
    ask(page, "Tell me a story about a dog.")
    eventually(lambda: send_button(page).text == "Stop", "the answer begins")
    eventually(lambda: send_button(page).text == "Send", "the answer ends")
    question, answer = texts(page, ".message")
    assert question == "Tell me a story about a dog."
    assert len(answer) > 20
    assert not texts(page, ".error")
    figures = texts(page, ".figures")[0]
    assert re.fullmatch(r"first token after \d+ ms · \d+ tokens · \d+ tokens/s", figures), figures
    eventually(lambda: server.bytes_in_use() == 0, "the pages are free")


def test_stop_frees_the_pages_and_new_chat_forgets(page, server):
    ask(page, "Tell me a story about a cat.")
    eventually(lambda: len(texts(page, ".message")[-1]) > 5, "some text")
    send_button(page).click()
    eventually(lambda: server.bytes_in_use() == 0, "the pages are free")
    assert send_button(page).text == "Send"
    page.find_element(By.ID, "new").click()
    assert texts(page, ".message") == []


def test_a_refusal_is_shown(page):
    field = page.find_element(By.ID, "input")
    page.execute_script("arguments[0].value = arguments[1]", field, "word " * 5000)  # as if pasted
    ask(page, ".")
    eventually(lambda: texts(page, ".error"), "the error")
    assert "2048" in texts(page, ".error")[0]


def test_it_fits_a_phone(page):
    assert page.title == "Tessera"
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(overflow) == 0
    assert send_button(page).is_displayed()


def test_a_locked_server_lets_in_who_knows_the_key():
    with TesseraServer("--api-key", "sesame") as locked:
        driver = browser(locked.http.replace("http://", "http://me:sesame@") + "/")
        try:
            ask(driver, "Tell me a story about a dog.")
            eventually(lambda: len(texts(driver, ".message")) > 1
                       and len(texts(driver, ".message")[1]) > 20, "an answer")
            assert not texts(driver, ".error")
        finally:
            driver.quit()
        driver = browser(locked.http.replace("http://", "http://me:wrong@") + "/")
        try:
            assert not driver.find_elements(By.ID, "input")
        finally:
            driver.quit()
