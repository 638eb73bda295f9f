"""The commands of ``farcall``, one module for each theme; `farcall.cli.main` puts them together."""
