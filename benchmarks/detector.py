"""How well `suture interop` finds planted faults, and how often it cries wolf: ``python
benchmarks/detector.py [--quick]``.

On `outbreak` and on five families of generated federations that the tests' tolerances were not set
on. Ends with exit code 1 if any set's clean twins raise more false alarms than the stated rate
allows (one-sided binomial test, 1 in 1,000).
"""

import json
import sys

from scipy.stats import binom

from suture.interop.evidence import ALPHA
from suture.papers.ifedavg.detection import by_fault, by_set, gather, plan


def main() -> int:
    """Print both tables, one JSON object a row."""
    records = gather(plan("--quick" in sys.argv))
    for row in (*by_set(records), *by_fault(records)):
        print(json.dumps(row))
    ours = [row for row in by_set(records) if row["rule"].startswith("our")]
    over = [
        row["set"]
        for row in ours
        if binom.sf(row["with a false flag"] - 1, row["clean twins"], ALPHA) < 0.001
    ]
    print(f"more false alarms than stated: {', '.join(over) or 'nowhere'}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
