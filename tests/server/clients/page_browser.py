"""Chromium on the chat page, headless, at the two sizes that the page is made for."""

import json
import pathlib

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tessera_server import eventually

CHROMIUM = pathlib.Path("/usr/bin/chromium")
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}


class Page:
    """The page in a browser of its own."""

    def __init__(self, url, size="desktop", theme="light"):
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--enable-precise-memory-info", "--js-flags=--expose-gc"):
            options.add_argument(flag)
        # The page must need no address other than the server's own.
        options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
        self.size = size
        width, height = SIZES[size]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": theme}]})
        # An alert, should foreign text run: noted instead of shown.
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {
            "source": "window.ran = []; for (const f of ['alert', 'confirm', 'prompt'])"
                      " window[f] = (x) => { window.ran.push(String(x)); };"
                      "document.addEventListener('securitypolicyviolation',"
                      " (e) => (window.violations ??= []).push(e.violatedDirective));"})
        self.driver.get(url)
        self.ready()

    def ready(self):
        # A page that is refused, for want of a key, has no script.
        eventually(lambda: self.js("return !document.querySelector('#input') ||"
                                   " 'ready' in document.documentElement.dataset"), "the page's script")

    def reload(self):
        self.driver.refresh()
        self.ready()

    @property
    def phone(self):
        return self.size == "phone"

    def close(self):
        self.driver.quit()

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)",
                       selector)

    def click(self, selector):
        self.find(selector).click()

    def press(self, *keys):
        """Presses keys together: modifiers first."""
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in reversed(keys[:-1]):
            chain.key_up(key)
        chain.perform()

    def type(self, text):
        ActionChains(self.driver).send_keys(text).perform()

    def ask(self, text, wait=True):
        answers = len(self.all(".message.assistant"))
        self.find("#input").send_keys(text, Keys.ENTER)
        eventually(lambda: len(self.all(".message.assistant")) > answers, "the answer begins")
        if wait:
            self.ended()

    def ended(self):
        eventually(lambda: self.js("return document.querySelector('#send').ariaLabel") == "Send"
                   and not self.all(".message.streaming"), "the answer ends")

    def sidebar(self):
        """Opens the list of chats, if it is closed."""
        if not self.js("return document.querySelector('#sidebar').classList.contains('open')"):
            self.click("#toggle-sidebar")

    def panel(self):
        if not self.js("return document.querySelector('#panel').classList.contains('open')"):
            self.click("#toggle-panel")

    def menu(self, entry, chat=0):
        """Chooses an entry of a chat's menu."""
        self.sidebar()
        self.js("document.querySelectorAll('#chats [data-id] .icon-button')[arguments[0]].click()", chat)
        eventually(lambda: self.all("#chat-menu:popover-open"), "the menu")
        next(e for e in self.all("#chat-menu button") if e.text == entry).click()

    def settings(self, **values):
        """Fills the form of settings and saves it."""
        self.click("#open-settings")
        for name, value in values.items():
            self.js("const e = document.getElementById(arguments[0]);"
                    "if (e.type === 'checkbox') e.checked = arguments[1]; else e.value = arguments[1];"
                    "e.dispatchEvent(new Event('change'));",
                    name if name == "system" else f"setting-{name}", value)
        self.click("#settings-save")

    def import_file(self, path):
        self.sidebar()
        self.find("#import-file").send_keys(str(path))

    def downloads(self, action):
        """Returns: name and text of the file that `action` lets the page save."""
        self.js("window.saved = null; URL.createObjectURL = (blob) => {"
                " blob.text().then((text) => { window.saved = { ...window.saved, text }; }); return 'blob:x'; };"
                "HTMLAnchorElement.prototype.click = function () {"
                " window.saved = { ...window.saved, name: this.download }; };")
        action()
        eventually(lambda: self.js("return window.saved?.name && window.saved?.text"), "the file")
        saved = self.js("return window.saved")
        return saved["name"], saved["text"]

    def errors(self):
        """Returns: the errors of the browser's console, without answers of 4xx."""
        return [entry["message"] for entry in self.driver.get_log("browser")
                if entry["level"] == "SEVERE" and "Failed to load resource" not in entry["message"]]

    def screenshot(self, path):
        self.driver.save_screenshot(str(path))

    def json(self, expression):
        return json.loads(self.js(f"return JSON.stringify({expression})"))
