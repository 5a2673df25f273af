"""``python -m sealring`` is the `sealring` command."""

from sealring.cli import main

if __name__ == "__main__":
    main()
