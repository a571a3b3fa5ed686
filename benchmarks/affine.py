"""A step of iFedAvg side by side with plain PyTorch: ``python benchmarks/affine.py``."""

from suture.bench.affine import measure


def main() -> None:
    """Print both sides and the ratio, for two batch sizes."""
    for batch in (8, 32):
        found = measure(batch)
        print(f"batch {batch:3d}: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
