"""Pictures of the page of a results directory in headless Chromium: wide and narrow, light and dark.

    python scripts/page_pictures.py RESULTS TARGET --only narrow --height 400     # to try it
    python scripts/page_pictures.py RESULTS docs --only light --height 1400 --view 'clock=2&target=0.77'

The second command makes docs/page.png from the comparison that docs/page.md names.

Writes the page by `istbench report --html`, then TARGET/page.png, page-dark.png, page-narrow.png and
page-narrow-dark.png. Without --height, a picture has the whole page. Without a browser, it draws nothing.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
KINDS: dict[str, tuple[str, int, Literal["light", "dark"]]] = {
    "light": ("page", 1000, "light"),
    "dark": ("page-dark", 1000, "dark"),
    "narrow": ("page-narrow", 360, "light"),
    "narrow-dark": ("page-narrow-dark", 360, "dark"),
}
"""By kind: the name of the file, the width in pixels, and the colour scheme."""

_COLOURS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--only", choices=KINDS, help="one of the four pictures")
    parser.add_argument("--height", type=int, help="pixels from the top; default: the whole page")
    parser.add_argument("--view", default="", help="of the page, as in its address: clock=2&target=0.77")
    arguments = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print("0 pictures: there is no Chromium here")
        return
    arguments.target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        words = [sys.executable, "-m", "istbench", "report", str(arguments.results), "--no-pictures", "--html"]
        subprocess.run([*words, str(page)], check=True, stdout=subprocess.DEVNULL)
        for kind in [arguments.only] if arguments.only else KINDS:
            draw(browser, f"{page.as_uri()}#{arguments.view}", kind, arguments.height, arguments.target)


def draw(browser: str, address: str, kind: str, height: int | None, target: Path) -> None:
    """Draw the page at `address` as `kind` into `target`."""
    from playwright.sync_api import sync_playwright

    name, width, scheme = KINDS[kind]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        tab = chromium.new_page(viewport={"width": width, "height": height or 900}, color_scheme=scheme)
        tab.goto(address)
        for chart in tab.locator("figure:visible").all():  # a chart is drawn when the reader comes near
            chart.scroll_into_view_if_needed()
            chart.locator("svg").first.wait_for()
        tab.evaluate("scrollTo(0, 0)")
        shot = tab.screenshot(full_page=height is None)
        chromium.close()
    # A page has few colours, and a picture with as few of them is a third as large.
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(_COLOURS).save(target / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
