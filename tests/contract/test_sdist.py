"""The source distribution, from which the released wheel is built."""

from pathlib import Path

from hatchling.builders.sdist import SdistBuilder

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "executor/farcall/deploy"


def test_linked_folders_are_in_sdist():
    linked = {
        path.relative_to(ROOT).as_posix()
        for folder in (DEPLOY / "iam", DEPLOY / "kubernetes")
        for path in folder.iterdir()
    }

    included = {
        file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()
    }

    assert linked - included == set()
