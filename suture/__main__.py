"""``python -m suture`` is the command ``suture``."""

from suture.cli import main

if __name__ == "__main__":
    main()
