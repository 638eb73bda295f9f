"""farcall's tests; what several of them use is imported from here as ``tests.support``."""
