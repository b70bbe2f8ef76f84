"""Exercise 14, solved: the time and the price of a training on two computes of Azure.

python price_solved.py cpu-cluster=412:0.29 gpu-cluster=31:0.53
"""

from __future__ import annotations

import argparse


def price(seconds: float, per_hour: float) -> float:
    return seconds / 3600 * per_hour


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare computes by time and price")
    parser.add_argument("computes", nargs="*", metavar="NAME=SECONDS:PRICE_PER_HOUR")
    # Made up; take yours from `hpcdist summary`, and prices from Azure's page.
    args = parser.parse_args()
    given = args.computes or ["cpu-cluster=412:0.29", "gpu-cluster=31:0.53"]
    rows = []
    for text in given:
        name, _, numbers = text.partition("=")
        seconds, per_hour = map(float, numbers.split(":"))
        rows.append((name, seconds, price(seconds, per_hour)))
    print("compute       seconds   price  times as fast  times the price")
    _, first_s, first_price = rows[0]
    for name, seconds, cost in rows:
        times = f"{first_s / seconds:13.1f}  {cost / first_price:15.2f}"
        print(f"{name:12}  {seconds:7.0f}  {cost:.4f}  {times}")


if __name__ == "__main__":
    main()
