"""The pictures of docs/serving.md: light and dark, on a desktop and on a phone.

python docs/screenshots.py                  # of what `edgewise demo` trained
"""

import re
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
TEXT = "Yesterday the old man saw the dog."
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "edgewise", "serve", "--port", "0", *sys.argv[1:]],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    found = (re.search(r"(http://\S+) has the page", line) for line in server.stderr)
    address = next(match[1] for match in found if match)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(ARGUMENTS)
        )
        for scheme in ("light", "dark"):
            for name, size in (("", DESKTOP), ("phone-", PHONE)):
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.goto(address)
                page.fill("#source", TEXT)
                page.wait_for_selector("#translation .word")
                page.wait_for_selector("html[data-state=idle]")
                if scheme == "dark":  # the other half: positions, within the sentence
                    page.select_option("#stack", "encoder")
                    page.select_option("#head", "2")
                    page.wait_for_selector("html[data-state=idle]")
                page.hover("#attention .query >> nth=4" if scheme == "dark" else ".word >> nth=4")
                page.wait_for_selector("html[data-state=idle]")
                page.screenshot(path=DOCS / f"page-{name}{scheme}.png")
        browser.close()
    server.send_signal(signal.SIGTERM)
    server.wait()


if __name__ == "__main__":
    main()
