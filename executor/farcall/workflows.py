"""What jobs belong to, in the eyes of whoever looks at them. No I/O."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from farcall.settings import Settings
from farcall_runtime.contract import ENV_DISPATCH, ENV_WORKFLOW

_MOST_CHARACTERS = 128


class Workflow(NamedTuple):
    """A workflow, whose jobs are listed and cancelled together.

    Attributes:
        name: Its name: the option ``workflow``, a lattice's, or a script's.
        dispatch: Covalent's ID of the dispatch; empty where Covalent has no part in it.
    """

    name: str
    dispatch: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Workflow:
        """Return the workflow of what this process submits."""
        return cls(settings.workflow or _script())

    def environment(self) -> dict[str, str]:
        """Return what a job's environment says of it."""
        said = {ENV_WORKFLOW: self.name[:_MOST_CHARACTERS], ENV_DISPATCH: self.dispatch}
        return {name: value for name, value in said.items() if value}


def _script() -> str:
    """Return the name of the program that runs, as its author would call it."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        name = str(spec.name).removesuffix(".__main__")
        return "notebook" if name == "ipykernel_launcher" else name
    path = getattr(main, "__file__", None)
    return Path(path).name if path else "interactive"
