"""``python -m sealring_trio`` is the `sealring` command."""

from sealring_trio.cli import main

if __name__ == "__main__":
    main()
