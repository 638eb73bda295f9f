"""A user's project: modules that the container does not have."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

SOURCE = {
    "__init__": "",
    "helpers": """
        FACTOR = 3

        def scale(x):
            return FACTOR * x
    """,
    "models": """
        import dataclasses
        import enum

        from labkit.helpers import scale


        @dataclasses.dataclass
        class Point:
            x: int
            made = 0  # counted on the class

            def moved(self, by):
                type(self).made += 1
                return Point(self.x + scale(by))


        class Color(enum.Enum):
            RED = 1
            BLUE = 2


        class Shape:
            class Point:
                sides = 0

                def __init__(self, x):
                    self.x = x


        class LabError(Exception):
            def __init__(self, code, *, hint):
                super().__init__(f"lab error {code}")
                self.code, self.hint = code, hint


        def move(point, by):
            return point.moved(by)

        def paint(color):
            return Color.BLUE if color is Color.RED else None

        def nest(shape):
            type(shape).sides += 1
            return shape

        def local_point(x):
            class Point:
                def __init__(self, x):
                    self.x = x
            return Point(x)

        def fail(code):
            raise LabError(code, hint="look")
    """,
}


@contextmanager
def imported(folder) -> Iterator[None]:
    """Make the project importable within a block, with newly imported modules."""
    package = folder / "src" / "labkit"
    package.mkdir(parents=True)
    for name, text in SOURCE.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))
    sys.path.insert(0, str(package.parent))
    try:
        yield
    finally:
        sys.path.remove(str(package.parent))
        for name in [name for name in sys.modules if name.partition(".")[0] == "labkit"]:
            del sys.modules[name]
