"""FedCVR's own work on Suture beside Flower + PyTorch + Opacus, both cores busy. Target: 120 times;
aim: 200.

python benchmarks/flower.py [--quick]
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """One run of `suture.bench.fedcvr`."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from suture.bench import fedcvr

    found = fedcvr.measure(
        quick="--quick" in sys.argv[1:], say=lambda text: print(text, file=sys.stderr)
    )
    print(
        f"Suture            {found['suture_us_per_step']:9.1f} us a step ({found['cores']} threads)"
    )
    print(
        f"Flower + Opacus   {found['flower_us_per_step']:9.1f} us a step "
        f"({found['flower_backend']})"
    )
    print(
        f"processor time a step: {found['suture_cpu_us_per_step']:.1f} us and "
        f"{found['flower_cpu_us_per_step']:.1f} us"
    )
    print(f"fedcvr_vs_flower_opacus {found['fedcvr_vs_flower_opacus']:.0f}")


if __name__ == "__main__":
    main()
