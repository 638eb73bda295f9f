"""The pictures on the pages, made by the real commands and the real page: ``make pictures``."""
