"""Exercise 14: the time and the price of a training on two computes of Azure.

python price.py cpu-cluster=412:0.29 gpu-cluster=31:0.53

It runs as it is, with all prices 0. There is one TODO.
"""

from __future__ import annotations

import argparse


def price(seconds: float, per_hour: float) -> float:
    # TODO: what so many seconds cost.
    return 0.0


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
    _, first_s, _ = rows[0]
    for name, seconds, cost in rows:
        print(f"{name:12}  {seconds:7.0f}  {cost:.4f}  {first_s / seconds:13.1f}  {'?':>15}")


if __name__ == "__main__":
    main()
