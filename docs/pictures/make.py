"""Make the picture of the README and of the site's first page: the answer of a real summary, light and dark.

python docs/pictures/make.py

It trains on one rank and on two, each with one CPU, then has a browser draw the page of the summary. Run it where
nothing else uses the CPUs: runs that were disturbed are not compared.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

FOLDER = Path(__file__).parent
WIDTH = 840
"""GitHub shows a README about this wide; twice as many pixels are sharp on every screen."""
JOB = ["speedup", "--local", "--repeat", "4", "--set", "resources.cpus_per_gpu=1"]
SETTINGS = ["--set", "train.batch_size=64", "--set", "train.epochs=20"]


def main() -> None:
    """Submit the runs, and write summary-light.png and summary-dark.png."""
    with tempfile.TemporaryDirectory() as work:
        _hpcdist(work, "submit", *JOB, *SETTINGS)
        _hpcdist(work, "summary", "last", "--html", "page.html")
        for scheme in ("light", "dark"):
            _draw(Path(work, "page.html"), scheme).save(
                FOLDER / f"summary-{scheme}.png", optimize=True
            )


def _hpcdist(work: str, *args: str) -> None:
    environment = {**os.environ, "HPCDIST_RUNS": f"{work}/runs"}
    subprocess.run([sys.executable, "-m", "hpcdist", *args], cwd=work, env=environment, check=True)


def _draw(page: Path, scheme: str) -> Image.Image:
    """Return what the page says of the comparison: the answer, its picture and its table."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", f"--window-size={WIDTH},2400"):
        options.add_argument(argument)
    options.add_argument("--force-device-scale-factor=2")
    browser = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    try:
        scheme_wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_wanted)
        browser.get(page.as_uri())
        shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
        top = browser.find_element(By.CSS_SELECTOR, "section h2").location["y"]
        end = browser.find_elements(By.CSS_SELECTOR, "section h3")[1].location["y"]
    finally:
        browser.quit()
    cut = shot.crop((0, 2 * int(top) - 20, 2 * WIDTH, 2 * int(end) - 20))
    return cut.quantize(96, dither=Image.Dither.NONE)  # a flat picture: a fifth of the bytes


if __name__ == "__main__":
    main()
