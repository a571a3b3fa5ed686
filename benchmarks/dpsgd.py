"""DP-SGD side by side with Opacus and plain PyTorch: ``python benchmarks/dpsgd.py``."""

from suture.bench.dpsgd import measure


def main() -> None:
    """Print the figures as a table."""
    for name, value in measure().items():
        print(f"{name:24s} {value:10.1f}")


if __name__ == "__main__":
    main()
