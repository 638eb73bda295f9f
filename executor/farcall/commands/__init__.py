"""The commands of ``farcall``, one module for each theme; `farcall.cli` puts them together."""
