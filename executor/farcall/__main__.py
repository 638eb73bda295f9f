"""``python -m farcall`` is ``farcall``."""

from farcall.cli import main

main()
