"""The page in a real browser: sorted by keyboard and mouse, on a phone, dark and light."""

from __future__ import annotations

import os
import shutil

import pytest

DESKTOP, PHONE = 1200, 390
RUNS = "[...document.querySelectorAll('table')].find(t => t.innerText.includes('ddp-4'))"


@pytest.fixture(scope="module")
def browser(missing, tmp_path_factory):
    """One for all tests: it takes seconds to start."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        missing("there is no browser: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    for flag in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--disable-background-networking", profile),
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # It lives longer than a test, whose processes are told by their environment.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HPCDIST_TEST_")
    }
    service = webdriver.ChromeService(executable_path=driver, env=environment)
    opened = webdriver.Chrome(options=options, service=service)
    try:
        yield opened
    finally:
        opened.quit()


def show(browser, page, *, width=DESKTOP, scheme="light", media=""):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # of the page before
    browser.get(page.as_uri())


def column(browser, number):
    """Texts of a column of the first table of runs."""
    return browser.execute_script(
        f"return [...{RUNS}.tBodies[0].rows].map(row => row.cells[{number}].textContent)"
    )


def brightness(browser, selector):
    """Of the text, of what is behind it, and of what is filled."""
    colours = browser.execute_script(
        "const style = getComputedStyle(document.querySelector(arguments[0]));"
        "return [style.color, style.backgroundColor, style.fill]",
        selector,
    )
    numbers = (colour[colour.index("(") + 1 : -1].split(",")[:3] for colour in colours)
    return [sum(map(float, each)) / 3 for each in numbers]


def test_the_page_works_by_mouse_and_keyboard_and_asks_for_nothing(browser, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    assert browser.title == "Summary of 5 runs"  # and not evil
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    requests = [entry["message"] for entry in browser.get_log("performance")]
    sent = [text for text in requests if "Network.requestWillBeSent" in text]
    assert [text for text in sent if '"url":"http' in text] == []

    headers = browser.execute_script(f"return [...{RUNS}.tHead.rows[0].cells]")
    names = [header.text for header in headers]
    rate = next(index for index, name in enumerate(names) if name.startswith("samples/s"))
    button = headers[rate].find_element(By.TAG_NAME, "button")
    button.click()
    button.send_keys(Keys.ENTER)
    assert headers[rate].get_attribute("aria-sort") == "descending"
    assert [text.split()[0] for text in column(browser, rate)] == ["180", "120", "100"]
    headers[0].find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert headers[rate].get_attribute("aria-sort") is None
    assert column(browser, 1) == ["ddp-1", "ddp-2", "ddp-4"]
    jobs = browser.find_elements(By.CSS_SELECTOR, "nav li")
    (ddp,) = (job for job in jobs if "4 ranks (1 x 4) are" in job.text)
    assert any("1 of 1 did not end well" in job.text for job in jobs)
    ddp.find_element(By.TAG_NAME, "a").click()
    assert browser.execute_script("return scrollY") > 0


def test_the_page_fits_a_phone_and_first_columns_stay_where_a_table_is_scrolled(browser, page):
    from selenium.webdriver.common.by import By

    show(browser, page, width=PHONE)
    assert browser.execute_script("return document.documentElement.scrollWidth") == PHONE
    pictures = browser.find_elements(By.CSS_SELECTOR, ".picture")
    assert len(pictures) >= 3
    assert all(picture.size["height"] > 50 for picture in pictures)
    widths = "return arguments[0].map(picture => [picture.scrollWidth, picture.clientWidth])"
    assert all(inner == outer for inner, outer in browser.execute_script(widths, pictures))
    number, run, state, right = browser.execute_script(
        f"const table = {RUNS}, scroll = table.closest('.scroll');"
        "scroll.scrollLeft = 150;"
        "const left = element => Math.round(element.getBoundingClientRect().left);"
        "const [number, run, state] = table.tBodies[0].rows[0].cells;"
        "return [...[number, run, state].map(each => left(each) - left(scroll)), "
        "  run.getBoundingClientRect().right - left(scroll)]"
    )
    assert 0 == number < run < PHONE / 2
    assert state < right  # it went beneath those that stay


def test_text_and_pictures_are_light_on_dark_where_the_reader_likes_that_but_on_paper(
    browser, page
):
    for scheme, media, sign in (("light", "", 1), ("dark", "", -1), ("dark", "print", 1)):
        show(browser, page, scheme=scheme, media=media)
        text, back, _ = brightness(browser, "body")
        assert sign * (back - text) > 150
        *_, picture = brightness(browser, ".picture svg text")
        assert (picture > 150) is (sign < 0)
