"""The Python code in README and docs/ runs on the local AWS emulator.

A block whose first line is ``# name.py`` is a complete script. The other blocks of a page are run
in order and share their variables, like the cells of a notebook; they may use ``await``. A block
after ``<!-- not run: reason -->`` is skipped.
"""

import ast
import asyncio
import inspect
import warnings
from pathlib import Path

import pytest

from tests import emulators
from tests.docs.pages import PAGES, ROOT, blocks, run_installed
from tests.support.covalent_server import CovalentServer

BLOCKS = [
    block
    for page in PAGES.values()
    for block in blocks(page)
    if block.language == "python" and not block.reason
]
CELLS = {
    name: [block for block in BLOCKS if block.page == page and not block.script]
    for name, page in PAGES.items()
}
SCRIPTS = {
    f"{block.page.relative_to(ROOT)}-{block.script}": block for block in BLOCKS if block.script
}


FAST_PAGES = {"README.md", "docs/async.md", "docs/sync.md"}


def require_covalent(*parts):
    if any("import covalent" in block.code for block in parts):
        with warnings.catch_warnings():  # of Covalent's dependencies
            warnings.simplefilter("ignore")
            pytest.importorskip("covalent", reason="pip install 'farcall[covalent]'")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=() if name in FAST_PAGES else pytest.mark.slow)
        for name, cells in CELLS.items()
        if cells
    ],
)
def test_page_blocks_run_in_order(page, aws):
    require_covalent(*CELLS[page])
    names = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for cell in CELLS[page]:
            source = "\n" * (cell.line - 1) + cell.code  # so that tracebacks have the page's line
            code = compile(source, str(cell.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.get_loop().run_until_complete(eval(code, names))
            else:
                exec(code, names)


@pytest.mark.parametrize(
    "block",
    [
        # One script is fast enough for the default tests.
        pytest.param(block, marks=() if block.script == "first.py" else pytest.mark.slow, id=name)
        for name, block in SCRIPTS.items()
    ],
)
def test_script_runs_as_pasted(block, tmp_path):
    require_covalent(block)
    Path(block.script).write_text(block.code)
    # A script may start a server, which needs its own files and port.
    environment = CovalentServer(tmp_path / "covalent").environment
    if 'backend="kubernetes"' in block.code:
        with emulators.start(kubernetes=True) as cluster:
            done = run_installed("python", block.script, **cluster.environment, **environment)
    else:
        done = run_installed("farcall", "local", "--", "python", block.script, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != ""
