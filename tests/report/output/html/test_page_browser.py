"""The page in a real browser. One browser opens it for all tests."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest

pytestmark = pytest.mark.processes

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'"
    )
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            f"no Chromium here: apt-get install chromium-headless-shell gives one (looked for {', '.join(NAMES)})"
        )
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])


@pytest.fixture
def opened(browser, page_file):
    """The page at a desktop's size, and what its console says and what it asks a network for."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    tab = context.new_page()
    tab.said, tab.asked = [], []
    tab.on(
        "console", lambda message: tab.said.append(message.text) if message.type in ("error", "warning") else None
    )
    tab.on("pageerror", lambda error: tab.said.append(str(error)))
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.goto(page_file.as_uri())
    yield tab
    context.close()


def column(tab, place):
    table = tab.locator("article:not([hidden]) table:visible").first
    return [row.locator("th,td").nth(place).inner_text() for row in table.locator("tbody tr").all()]


def wait_for_axis(tab, label):
    """Wait for an axis with this title below the first chart."""
    tab.locator("figure:visible").first.locator("svg").get_by_text(label, exact=True).wait_for()


def scroll_through(tab):
    tab.evaluate("for (const one of document.querySelectorAll('figure')) one.scrollIntoView()")
    tab.wait_for_timeout(150)
    tab.evaluate("scrollTo(0, 0)")


def test_the_page_does_all_that_it_offers(opened, tmp_path):
    tab = opened
    # Charts are drawn, by an interpreter that needs no eval.
    tab.locator("figure:visible svg").first.wait_for()
    wait_for_axis(tab, "train time (s)")
    scroll_through(tab)
    assert tab.locator("figure:visible").count() == tab.locator("figure:visible .plot svg").count()

    # Sorting, by mouse and by keyboard.
    seconds = (
        tab.locator("article:not([hidden]) table:visible").first.locator("th button").filter(has_text="seconds to")
    )
    head = seconds.locator("xpath=..")
    seconds.click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = column(tab, 3)
    seconds.focus()
    tab.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    falling = column(tab, 3)
    assert [text for text in rising if "not" not in text] == [text for text in falling if "not" not in text][::-1]
    assert "not reached" in rising[-1]
    assert "not reached" in falling[-1]

    # One clock and one target for the page, in its address.
    tab.select_option("#clock", "2")
    assert "Replayed on m5.2xlarge" in tab.locator(".answer:visible").inner_text()
    wait_for_axis(tab, "replayed time (s)")
    tab.select_option("#target", "0.7")
    assert "accuracy 0.7" in tab.locator(".verdict:visible").inner_text()
    tab.select_option("#over", "traffic")
    wait_for_axis(tab, "sent by the busiest node (MB)")
    tab.locator(".method:visible").first.uncheck()
    view = tab.evaluate("location.hash")
    assert re.search(r"clock=2.*target=0\.7.*over=traffic.*off=", view)

    # The legend switches a method off.
    visible = tab.evaluate_handle("[...document.querySelectorAll('figure')].find((one) => one.offsetParent)")
    without = visible.evaluate("one => one.querySelector('svg').innerHTML.length")
    tab.locator(".method:visible").first.check()
    assert visible.evaluate("one => one.querySelector('svg').innerHTML.length") > without

    # Every picture is saved as SVG, with a legend of its own.
    with tab.expect_download() as download:
        tab.locator("figure:visible .svg").first.click()
    download.value.save_as(tmp_path / "chart.svg")
    texts = [one.text for one in ElementTree.parse(tmp_path / "chart.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"ddp", "ist", "sent by the busiest node (MB)"} <= set(texts)

    # A data table under each chart; a table as CSV.
    tab.locator("figure:visible details.data summary").first.click()
    tab.locator("figure:visible details.data tr").nth(10).wait_for()
    heads = tab.locator("figure:visible details.data th").all_inner_texts()
    assert {"method", "sent by the busiest node (MB)", "test accuracy"} <= set(heads)
    tab.locator("article:not([hidden]) .copy:visible").first.click()
    tab.get_by_text("Copied", exact=True).wait_for()

    # The second study has its own targets and clocks.
    tab.select_option("#study", "1")
    assert "accuracy 0.5" in tab.locator(".verdict:visible").inner_text()
    assert tab.locator("#target option").all_inner_texts() == ["0.5"]

    assert tab.said == []
    assert {url.split(":")[0] for url in tab.asked} <= {"file", "blob"}
    assert len([url for url in tab.asked if url.startswith("file")]) == 1


def test_the_address_brings_back_the_view(opened, page_file):
    opened.goto(f"{page_file.as_uri()}#study=0&clock=2&target=0.7&over=steps&off=%5B%22ist%22%5D")
    opened.reload()
    assert "Replayed on m5.2xlarge" in opened.locator(".answer:visible").inner_text()
    assert opened.input_value("#target") == "0.7"
    assert not opened.locator(".method[value=ist]:visible").is_checked()
    opened.goto(f"{page_file.as_uri()}#study=9&clock=x&target=%3Cb%3E&over=no&off=nonsense")
    opened.reload()
    assert opened.input_value("#study") == "0"
    assert opened.said == []


def test_the_skip_link_moves_to_the_visible_answer_and_keeps_the_view(opened):
    opened.select_option("#clock", "2")
    opened.select_option("#target", "0.7")
    view = opened.evaluate("location.hash")
    opened.locator(".skip").focus()
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement === [...document.querySelectorAll('.answer')].find((one) => "
                           "one.offsetParent)")  # fmt: skip
    assert opened.evaluate("location.hash") == view


def test_the_data_of_a_range_that_is_open_says_not_reached(opened):
    opened.select_option("#target", "0.7")
    figure = opened.evaluate_handle(
        "[...document.querySelectorAll('figure')].find((one) => one.offsetParent && "
        "one.querySelector('script').textContent.includes('\"open\":true'))"
    )
    figure.as_element().query_selector("details.data summary").click()
    figure.as_element().wait_for_selector("details.data table")
    rows = figure.evaluate(
        "one => [...one.querySelectorAll('details.data tr')].map((row) => [...row.cells].map((cell) => "
        "cell.textContent))"
    )
    highest = rows[0].index("highest")
    found = [row[highest] for row in rows if row[:2] == ["ist", "point"]]
    assert found[-1] == "not reached"
    assert float(found[0]) > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_only_downward_and_axe_finds_nothing_serious(opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    opened.set_viewport_size({"width": 360, "height": 740})
    opened.emulate_media(color_scheme=scheme)
    scroll_through(opened)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    for details in opened.locator("details.cell:visible, details.notes:visible").all()[:3]:
        details.locator("summary").click()
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    found = axe.run(opened).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in SERIOUS] == []
    assert opened.said == []


def test_a_table_shows_that_it_scrolls_and_a_curve_has_words(opened):
    table = opened.locator("article:not([hidden]) .scroll:visible").first
    assert "more" not in table.get_attribute("class")
    opened.set_viewport_size({"width": 360, "height": 740})
    opened.locator(".swipe:visible").first.wait_for()
    assert "more" in table.get_attribute("class")
    table.evaluate("one => one.scrollTo(9999, 0)")
    opened.wait_for_function("one => one.classList.contains('moved')", arg=table.element_handle())
    opened.set_viewport_size({"width": 1200, "height": 900})
    opened.locator("figure:visible svg").first.wait_for()
    points = opened.locator("figure:visible").first.locator("svg .mark-symbol path")
    points.last.hover(force=True)
    opened.locator("[title*='test accuracy: ']").first.wait_for(state="attached")


def test_the_print_is_light_and_whole(opened):
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.locator(".controls").is_visible()
    assert opened.pdf().startswith(b"%PDF") if hasattr(opened, "pdf") else True


def test_json_of_a_specification_survives_the_page(opened):
    specs = opened.evaluate("[...document.querySelectorAll('figure script')].map((one) => one.textContent)")
    assert all("description" in json.loads(spec) for spec in specs)


def test_what_is_copied_as_csv_computes_nothing_in_a_spreadsheet(opened):
    texts = {
        "-1.3": "-1.3", "+1e-3": "+1e-3", "=1": "'=1", "@SUM(1)": "'@SUM(1)", "\uff1d1": "'\uff1d1",
        "ist;=1": "ist;'=1", "lr=0.1 a-b": "lr=0.1 a-b", "-Infinity": "'-Infinity", '-a,"b"': '"\'-a,""b"""',
    }  # fmt: skip
    copied = opened.evaluate(
        """(texts) => {
            const button = [...document.querySelectorAll(".copy")].find((one) => one.offsetParent);
            const table = button.closest("p").previousElementSibling.querySelector("table");
            table.tBodies[0].replaceChildren();
            for (const text of texts) table.tBodies[0].insertRow().insertCell().textContent = text;
            return new Promise((resolve) => {
                navigator.clipboard.writeText = async (text) => resolve(text);
                button.click();
            });
        }""",
        list(texts),
    )
    assert copied.splitlines()[1:] == list(texts.values())
