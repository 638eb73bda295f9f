"""Imported distributions: installed distributions that the project's code uses.

For ``packages="auto"``. The code is the script and the modules that it has loaded, with all files
of their packages. Their imports are read from the source, so that an import in a function counts.
The process's loaded modules count as well, because a module may be imported by a computed name.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path

from farcall.config.settings import Settings
from farcall.payload import sources
from farcall.payload.sources import Sources
from farcall.payload.walk import File

_IMPORT = re.compile(
    r"(?:^|[:;])[ \t]*"
    r"(?:from[ \t]+(?P<base>\w[\w.]*)[ \t]+import\b|import[ \t]+(?P<names>[\w., \t]+))",
    re.MULTILINE,
)

PROGRAMS = ("farcall", "covalent", "ipykernel", "ipython", "debugpy", "pytest", "coverage")
"""Programs that load many modules; the code does not need their requirements."""


def modules(settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """Return the top-level modules that the code imports, and those that are loaded.

    Raises:
        SettingsError: A folder of the option ``sources`` does not exist.
    """
    project = sources.find(settings.sources or sources.AUTO, settings.exclude_sources)
    named = frozenset() if project is None else _named(project)
    loaded = {name.partition(".")[0] for name in list(sys.modules)}
    return named, frozenset(loaded - named)


def _named(project: Sources) -> frozenset[str]:
    """Return the imports of the project's loaded modules and of modules they import."""
    tops: dict[str, list[File]] = {}
    main = sources.main_file()
    for file in project.files:
        for start in project.path:
            is_code = file.path.endswith(".py") or file.path == main
            if is_code and file.place.startswith(f"{start}/"):
                first = file.place[len(start) + 1 :].partition("/")[0].removesuffix(".py")
                tops.setdefault(first, []).append(file)
    left = {each.__name__.partition(".")[0] for each in sources.project_modules()} | {
        Path(main).stem
    }
    names = set(_names_in_cells())
    left |= names
    reached: set[str] = set()
    while left:
        name = left.pop()
        if name in reached or name not in tops:
            continue
        reached.add(name)
        for file in tops[name]:
            imported = _names_in_file(file.path, file.size, file.changed)
            names |= imported
            left |= imported
    return frozenset(names - reached)


def _names_in_cells() -> AbstractSet[str]:
    """Return the imports of a notebook's cells."""
    if sources.main_file():
        return set()
    texts = ["".join(e[2]) for e in list(linecache.cache.values()) if len(e) > 1 and e[1] is None]
    return _names_in("\n".join(texts))


@functools.lru_cache(4096)
def _names_in_file(path: str, _size: int, _changed: int) -> AbstractSet[str]:
    try:
        return _names_in(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return set()


def _names_in(text: str) -> set[str]:
    """Return the top-level modules that a source imports; texts may add others."""
    module_names = set()
    for each in _IMPORT.finditer(text):
        if each["base"]:
            module_names.add(each["base"].partition(".")[0])
        else:
            parts = (part.split() for part in each["names"].split(","))
            module_names |= {words[0].partition(".")[0] for words in parts if words}
    return module_names
