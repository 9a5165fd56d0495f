# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium by the WebDriver protocol, for tests of the web page: Debian's chromium and chromium-driver, no library.

A test clicks and types as a person would, and looks at what the page then shows.
"""
import json
import shutil
import time
import urllib.error
import urllib.request

from service import free_port

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element in WebDriver's JSON
ENTER, TAB, DOWN = "\ue007", "\ue004", "\ue015"


def missing():
    """Why no browser can be had here; "" where one can."""
    absent = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"{' and '.join(absent)} not found: install Debian's chromium and chromium-driver" if absent else ""


class Browser:
    """One window. Started by a TerraceTest, which sees to it that the processes end."""

    def __init__(self, test, width=1280, height=900):
        self.test, port = test, free_port()
        self.root = f"http://127.0.0.1:{port}"
        test.run_command([shutil.which("chromedriver"), f"--port={port}"])
        test.wait_until(self._is_ready, "chromedriver listens")
        options = {"binary": shutil.which("chromium"),
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            f"--user-data-dir={test.folder / 'chromium'}", f"--window-size={width},{height}"]}
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = f"/session/{answer['sessionId']}"

    def _is_ready(self):
        try:
            return self._ask("GET", "/status")["ready"]
        except OSError:
            return False

    def _ask(self, method, path, body=None):
        request = urllib.request.Request(self.root + path, method=method, headers={"Content-Type": "application/json"},
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path} {body}: {json.load(error)['value']['message'][:500]}") from None

    def quit(self):
        self._ask("DELETE", self.session)

    def open(self, address):
        self._ask("POST", f"{self.session}/url", {"url": address})

    def run(self, script, *arguments):
        return self._ask("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def command(self, name, **parameters):
        """One of the DevTools protocol."""
        return self._ask("POST", f"{self.session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def find(self, selector):
        """The first element that is shown; waits for it."""
        script = "return [...document.querySelectorAll(arguments[0])].find(e => e.checkVisibility()) || null"
        return self.test.wait_until(lambda: self.run(script, selector), f"{selector} is shown", 30)

    def text(self, selector="body"):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')", selector)

    def wait_for_text(self, selector, wanted, seconds=30):
        deadline = time.monotonic() + seconds
        while wanted not in (text := self.text(selector)):
            self.test.assertLess(time.monotonic(), deadline, f"{selector} never showed {wanted!r}: {text[:2000]}")
            time.sleep(0.05)
        return text

    def click(self, selector):
        self._ask("POST", f"{self.session}/element/{self.find(selector)[ELEMENT]}/click", {})

    def click_link(self, words):
        script = "return [...document.querySelectorAll('a, button')].find(e => e.innerText === arguments[0]) || null"
        element = self.test.wait_until(lambda: self.run(script, words), f"a link {words!r} is there", 30)
        self._ask("POST", f"{self.session}/element/{element[ELEMENT]}/click", {})

    def type(self, selector, text):
        element = self.find(selector)[ELEMENT]
        self._ask("POST", f"{self.session}/element/{element}/clear", {})
        self._ask("POST", f"{self.session}/element/{element}/value", {"text": text})

    def press(self, *keys):
        """On whatever has the focus."""
        actions = [action for key in keys for action in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})]
        self._ask("POST", f"{self.session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def choose(self, selector, value):
        self.find(selector)
        self.run("const e = document.querySelector(arguments[0]); e.value = arguments[1];"
                 "e.dispatchEvent(new Event('change'))", selector, value)

    def complaints(self):
        """What the console says since the last call, without what the network says of answers that are errors."""
        lines = self._ask("POST", f"{self.session}/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING") and line["source"] != "network"]
