"""A step of iFedAvg side by side with plain PyTorch: ``python benchmarks/affine.py``."""

from suture.bench.dpsgd import measure_affine


def main() -> None:
    """Print both sides and the ratio, for three batch sizes."""
    for batch in (8, 16, 32):
        found = measure_affine(batch)
        print(
            f"batch {batch:2d}: Suture {found['suture us']:.0f} us a step, plain PyTorch "
            f"{found['pytorch us']:.0f} us, "
            f"ratio {found['ratio']:.1f} (PyTorch / Suture, processor time, one thread each)"
        )


if __name__ == "__main__":
    main()
