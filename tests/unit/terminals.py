"""Terminals that record what is written to them."""

import io


class Screen(io.StringIO):
    def isatty(self):
        return True


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
