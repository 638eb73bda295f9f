"""The pictures in README, made by the real commands and the real page: ``make pictures``."""
