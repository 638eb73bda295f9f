"""Files of requirements that the option ``packages`` rejects before uv reads them."""

import pytest

from farcall import SettingsError
from farcall.packages.wanted import resolve_file

POETRY = "[tool.poetry.dependencies]\nnumpy = '^2'\n"
DYNAMIC = "[project]\nname = 'mine'\nversion = '1'\ndynamic = ['dependencies']\n"


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("requirements.txt", "numpy\n".encode("utf-16"), "Save it as UTF-8"),
        ("pyproject.toml", POETRY.encode(), "poetry export"),
        ("pyproject.toml", (DYNAMIC + POETRY).encode(), "poetry export"),
        ("pyproject.toml", DYNAMIC.encode(), "uv pip compile"),
    ],
)
def test_unreadable_requirements_are_rejected(tmp_path, name, content, remedy):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=remedy):
        resolve_file(file, [], None)
