"""The page in a real browser: sorted by keyboard and mouse, on a phone, dark and light."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.report.page import to_html
from hpcdist.summary.report.report import make_report

EVIL = "<script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"
FAILED = Verdict(
    kind="exception",
    state="failed",
    message="rank 0 failed: ValueError",
    exit_code_of_run=1,
    log="logs/rank-00000.log",
)
DESKTOP, PHONE = 1200, 390
LIMIT_S = 90.0
MOST_TABS = 300


@pytest.fixture(scope="module")
def browser(missing, tmp_path_factory):
    """One for all tests: it takes seconds to start."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        missing("there is no browser: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(
            "--disable-background-networking",
            f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
        ),
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # It lives longer than a test, whose processes are told by their environment.
    environment = {name: value for name, value in os.environ.items() if not is_mark(name)}
    service = webdriver.ChromeService(executable_path=driver, env=environment)
    opened = webdriver.Chrome(options=options, service=service)
    try:
        yield opened
    finally:
        opened.quit()


def is_mark(name):
    return name.startswith("HPCDIST_TEST_")


@pytest.fixture(scope="module")
def page(make_run_in, events, tmp_path_factory):
    """Runs of 1, 2 and 4 ranks, and a failed one, on a page, which no test changes."""
    folder = tmp_path_factory.mktemp("page")
    make_run = make_run_in(folder)
    runs = []
    for gpus, rate in ((1, 100.0), (2, 60.0), (4, 45.0)):
        run = make_run(f"ddp-{gpus}", gpus=gpus)
        for rank in range(gpus):
            windows = events.steady([rate] * 4)
            events.write(run, rank, [events.start(rank, world_size=gpus), *windows, events.end()])
        runs.append(run)
    runs.append(make_run("ddp-bad", job=EVIL, verdict=FAILED))
    file = folder / "report.html"
    file.write_text(page_of(runs))
    return file


def page_of(runs):
    report = make_report(summarize(runs, {}))
    return to_html(report)


def show(browser, page, *, width=DESKTOP, scheme="light"):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # of the page before
    browser.get(page.as_uri())


RUNS = "[...document.querySelectorAll('table')].find(t => t.tHead.innerText.startsWith('#'))"


def column(browser, number):
    """Texts of a column of the first table of runs."""
    return browser.execute_script(
        f"return [...{RUNS}.tBodies[0].rows].map(row => row.cells[{number}].textContent)"
    )


def colours(browser, selector):
    return browser.execute_script(
        "const style = getComputedStyle(document.querySelector(arguments[0]));"
        "return [style.color, style.backgroundColor, style.fill]",
        selector,
    )


def test_the_page_works_by_mouse_and_keyboard_and_asks_for_nothing(browser, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    assert browser.title == "Summary of 4 runs"  # and not evil
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if "Network.requestWillBeSent" in entry["message"] and "http" in entry["message"]
    ]
    assert [text for text in requests if '"url":"http' in text] == []

    headers = browser.execute_script(f"return [...{RUNS}.tHead.rows[0].cells]")
    names = [header.text for header in headers]
    rate = next(index for index, name in enumerate(names) if name.startswith("samples/s"))
    assert [text.split()[0] for text in column(browser, rate)] == ["100", "120", "180"]
    button = headers[rate].find_element(By.TAG_NAME, "button")
    button.click()
    button.send_keys(Keys.ENTER)
    assert headers[rate].get_attribute("aria-sort") == "descending"
    assert [text.split()[0] for text in column(browser, rate)] == ["180", "120", "100"]
    headers[0].find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert headers[rate].get_attribute("aria-sort") is None
    assert column(browser, 0) == ["1", "2", "3"]


def test_the_page_fits_a_phone_and_shows_its_pictures(browser, page):
    show(browser, page, width=PHONE)
    width = "return document.documentElement.scrollWidth"
    assert browser.execute_script(width) == PHONE
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.picture svg')]"
        ".map(svg => svg.getBoundingClientRect()).map(box => [box.width, box.height])"
    )
    assert len(sizes) >= 3
    assert all(width > 300 and height > 50 for width, height in sizes)


def test_text_and_pictures_are_light_on_dark_where_the_reader_likes_that(browser, page):
    show(browser, page, scheme="light")
    text, back, _ = colours(browser, "body")
    assert brightness(back) - brightness(text) > 150
    show(browser, page, scheme="dark")
    text, back, _ = colours(browser, "body")
    assert brightness(text) - brightness(back) > 150
    assert brightness(colours(browser, ".picture svg text")[2]) > 200


def test_a_picture_that_does_not_fit_is_reached_and_scrolled_by_keyboard(browser, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    show(browser, page, width=PHONE)
    pictures, reached = browser.find_elements(By.CSS_SELECTOR, ".picture"), set()
    for _ in range(MOST_TABS):  # where the first one leads to, the browser decides
        if (focused := tab(browser)) is not None:
            name, outline, html = focused
            assert outline == "solid", html
            reached |= {html} if name == "picture" else set()
        if len(reached) == len(pictures):
            break
    assert len(pictures) == len(reached) >= 3
    wide = pictures[0]
    assert browser.execute_script(
        "return arguments[0].scrollWidth > arguments[0].clientWidth", wide
    )
    wide.send_keys(Keys.ARROW_RIGHT)
    WebDriverWait(browser, LIMIT_S).until(
        lambda _: browser.execute_script("return arguments[0].scrollLeft", wide) > 0
    )


def tab(browser):
    """Class, outline and text of what has the focus after the next Tab; None at the page's end."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(browser, duration=0).send_keys(Keys.TAB).perform()
    return browser.execute_script(
        "const now = document.activeElement;"
        "return now.matches('body, html') ? null"
        " : [now.className, getComputedStyle(now).outlineStyle, now.outerHTML]"
    )


def test_a_list_leads_to_each_job_and_failures_are_red(browser, page):
    from selenium.webdriver.common.by import By

    show(browser, page)
    first, second = browser.find_elements(By.CSS_SELECTOR, "nav li")
    assert "4 ranks (1 x 4) are" in first.text
    assert "1 of 1 did not end well" in second.text
    red, *_ = map(int, re.findall(r"\d+", colours(browser, "nav .failed")[0]))
    assert red > 150
    second.find_element(By.TAG_NAME, "a").click()
    assert browser.execute_script("return scrollY") > 0


def test_captions_and_first_columns_stay_where_a_table_is_scrolled(browser, page):
    show(browser, page, width=PHONE)
    places = browser.execute_script(
        f"const table = {RUNS}, scroll = table.closest('.scroll');"
        "scroll.scrollLeft = 150;"
        "const left = element => Math.round(element.getBoundingClientRect().left);"
        "const [number, run, state] = table.tBodies[0].rows[0].cells;"
        "const caption = scroll.parentNode.querySelector('.caption');"
        "return [scroll.scrollLeft, ...[scroll, caption, number, run, state].map(left), "
        "  run.getBoundingClientRect().right]"
    )
    scrolled, scroll, caption, number, run, state, right = places
    assert scrolled > 50
    assert scroll == caption == number
    assert number < run < PHONE / 2
    assert state < right  # it went beneath those that stay


def test_without_scripts_all_is_there(browser, page):
    from selenium.webdriver.common.by import By

    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page)
        assert browser.find_element(By.CSS_SELECTOR, "nav li").is_displayed()
        assert not browser.find_elements(By.CSS_SELECTOR, "th button")
        note = browser.find_element(By.CLASS_NAME, "for-scripts")
        assert not note.is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_on_paper_tables_are_whole_and_dark_on_white(browser, page):
    from selenium.webdriver.common.by import By

    show(browser, page, scheme="dark")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    text, back, _ = colours(browser, "body")
    assert brightness(back) - brightness(text) > 150
    assert brightness(colours(browser, "td.green")[0]) < 150
    for scrolled in browser.find_elements(By.CSS_SELECTOR, ".scroll"):
        assert scrolled.value_of_css_property("overflow-x") == "visible"


def brightness(colour):
    numbers = colour[colour.index("(") + 1 : -1].split(",")
    return sum(map(float, numbers[:3])) / 3
