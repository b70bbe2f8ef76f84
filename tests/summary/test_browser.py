"""The page in a real browser: sorted by keyboard and mouse, on a phone, dark and light."""

from __future__ import annotations

import shutil

import pytest

DESKTOP, PHONE = 1200, 390
RUNS = "[...document.querySelectorAll('table')].find(t => t.innerText.includes('ddp-4'))"


@pytest.fixture
def browser(missing, tmp_path_factory):
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
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
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


def test_the_page_works_by_mouse_and_keyboard_on_a_phone_and_in_the_dark(browser, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    assert browser.title == "Summary of 5 runs"  # and not evil
    assert [entry["message"] for entry in browser.get_log("browser")] == []
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
    (ddp,) = (
        job for job in browser.find_elements(By.CSS_SELECTOR, "nav li") if "4 ranks" in job.text
    )
    ddp.find_element(By.TAG_NAME, "a").click()
    assert browser.execute_script("return scrollY") > 0

    # First columns stay where a table is scrolled, and pictures fit.
    show(browser, page, width=PHONE, scheme="dark")
    assert browser.execute_script("return document.documentElement.scrollWidth") == PHONE
    pictures = browser.find_elements(By.CSS_SELECTOR, ".picture")
    widths = "return arguments[0].map(picture => [picture.scrollWidth, picture.clientWidth])"
    assert all(inner == outer for inner, outer in browser.execute_script(widths, pictures))
    assert len(pictures) >= 3
    number, run, state = browser.execute_script(
        f"const table = {RUNS}, scroll = table.closest('.scroll');"
        "scroll.scrollLeft = 150;"
        "const left = element => Math.round(element.getBoundingClientRect().left);"
        "return [...table.tBodies[0].rows[0].cells].slice(0, 3)"
        "  .map(each => left(each) - left(scroll))"
    )
    assert 0 == number < run < PHONE / 2
    assert state < 150  # it went beneath those that stay

    # Text and pictures are light on dark where the reader likes that, but on paper.
    for media, sign in (("", -1), ("print", 1)):
        show(browser, page, scheme="dark", media=media)
        text, back, _ = brightness(browser, "body")
        assert sign * (back - text) > 150
        *_, picture = brightness(browser, ".picture svg text")
        assert (picture > 150) is (sign < 0)
