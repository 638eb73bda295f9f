"""Terminals that record what is written to them."""

from __future__ import annotations

import io


class Screen(io.StringIO):
    def isatty(self):
        return True


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
