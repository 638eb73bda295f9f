"""``python -m farcall`` is ``farcall``."""

from farcall.cli.main import main

main()
