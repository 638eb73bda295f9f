import os
import sys

import pytest
import uv as uv_package

from farcall.config.settings import Settings
from farcall.model.errors import FarcallError, SettingsError
from farcall.packages import cache, environment, imported, installed, target, uv
from farcall.packages.installed import SITE
from farcall.packages.target import Target
from tests.support.wheels import make_wheel
from tests.unit.packages.test_installed import install

assert uv_package.find_uv_bin()  # find it while it can still be imported
HERE = {"aarch64": "arm64", "arm64": "arm64"}.get(os.uname().machine, "x86_64")
OTHER = {"x86_64": "arm64", "arm64": "x86_64"}[HERE]


def linux(architecture):
    return f"manylinux_2_28_{Target(architecture).machine}"


def find(packages, **options):
    return environment.find(Settings(packages=packages, **{"architecture": HERE, **options}))


def names(found):
    return [(item.name, item.version) for item in found.items]


def refused(packages, **options):
    with pytest.raises(SettingsError) as caught:
        pack_all(find(packages, **options), cache.folder())
    assert caught.value.option == "packages"
    return str(caught.value)


def pack_all(found, folder):
    here = environment.fetch(found.items, found.target, folder)
    return {item.name: environment.pack(item, folder)[0] for item in here}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Import path with nothing installed."""
    site = tmp_path / "env" / SITE
    site.mkdir(parents=True)
    others = [each for each in sys.path if not installed.scan([each])]
    monkeypatch.setattr(sys, "path", [str(site), *others])
    return site


def add(site, *args, **more):
    install(site.parents[2], make_wheel(site.parents[3] / "wheels", *args, **more))
    for origin in site.glob("*.dist-info/direct_url.json"):
        origin.unlink()  # as if installed from an index


def why(found, name):
    return next(stays.why for stays in found.stays if stays.name == name)


# --- imported packages ------------------------------------------------------------------------


@pytest.fixture
def code(monkeypatch):
    """Return a function that sets the imports of the code, and the loaded modules."""

    def set_names(named=(), loaded=()):
        names = frozenset(named), frozenset(loaded)
        monkeypatch.setattr(imported, "modules", lambda _: names)

    return set_names


def test_imported_packages_include_their_requirements(site, code):
    add(site, "user-code", requires=["base[fast]>=1", "absent; python_version < '3'"])
    add(site, "base", requires=["quick; extra == 'fast'", "docs; extra == 'docs'"])
    for name in ("quick", "docs", "absent", "unused"):
        add(site, name)
    code(["user_code"])
    assert [name for name, _ in names(find("auto"))] == ["base", "quick", "user-code"]


def test_loaded_packages_are_sent_without_clients(site, code):
    add(site, "farcall", requires=["client"])
    for name in ("client", "plugin"):
        add(site, name)
    code(loaded=["farcall", "client", "plugin"])
    assert [name for name, _ in names(find("auto"))] == ["plugin"]
    code(named=["client"], loaded=["farcall"])
    assert [name for name, _ in names(find("auto"))] == ["client"]


def test_code_without_imports_sends_nothing(site, code):
    add(site, "unused")
    code(["farcall", "json"])
    assert names(find("auto")) == []


# --- local packages ---------------------------------------------------------------------------


def test_local_packages_exclude_client_dependencies(site):
    for name in ("farcall", "covalent", "pip", "uv", "wheel", "user-code", "tool"):
        add(site, name)
    add(site, "setuptools", requires=["pip"])
    add(site, "needs-it", requires=["setuptools", "covalent", "nothing>3; extra == 'x'"])
    found = find("local", exclude_packages=["Tool"])
    assert names(found) == [("needs-it", "1.0"), ("setuptools", "1.0"), ("user-code", "1.0")]
    assert why(found, "farcall") == "needed only by the client"
    assert why(found, "pip") == "an installer"
    assert why(found, "tool") == "in exclude_packages"


def test_packed_packages_are_cached_until_reinstalled(site, tmp_path):
    add(site, "grown")
    add(site, "same")
    first = pack_all(find("local"), tmp_path)
    assert [item.packed for item in find("local").items] == [first["grown"], first["same"]]
    add(site, "grown", "2.0")
    found = find("local")
    assert [item.packed for item in found.items] == [None, first["same"]]
    second = pack_all(found, tmp_path)
    assert second["same"] == first["same"]
    assert second["grown"].sha256 != first["grown"].sha256


def test_each_unsendable_package_is_named(site):
    for name in ("first", "second", "fine"):
        add(site, name)
    for name in ("first", "second"):
        (site / f"{name}-1.0.dist-info/RECORD").unlink()
    text = refused("local")
    assert "2 local packages cannot be sent" in text
    assert "first 1.0 has no RECORD" in text
    assert "second 1.0 has no RECORD" in text
    assert names(find("local", exclude_packages=["first", "second"])) == [("fine", "1.0")]


# --- another platform ---------------------------------------------------------------------------


def test_other_architecture_fetches_same_versions(site, index, tmp_path):
    add(site, "pure")
    add(site, "compiled", "1.1", tag=f"py3-none-{linux(HERE)}")
    for version in ("1.0", "1.1", "1.2"):
        index.add("compiled", version, tag=f"py3-none-{linux(OTHER)}")
    assert find("local").items[0].pin is None
    found = find("local", architecture=OTHER)
    assert names(found) == [("compiled", "1.1"), ("pure", "1.0")]
    packed = pack_all(found, tmp_path)
    assert packed["compiled"].version == "1.1"
    assert [path for path in index.asked if "pure" in path] == []
    assert {i.name: i.packed for i in find("local", architecture=OTHER).items} == packed


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_system_fetches_linux_wheels(site, index, tmp_path, monkeypatch, system):
    tag = {"darwin": "macosx_11_0_arm64", "win32": "win_amd64"}[system]
    add_foreign(site, "compiled", tag)
    index.add("compiled", tag=f"py3-none-{tag}")
    index.add("compiled", tag=f"py3-none-{linux(HERE)}")
    monkeypatch.setattr(target.sys, "platform", system)
    found = find("local")
    assert names(found) == [("compiled", "1.0")]
    assert found.items[0].pin is not None
    assert pack_all(found, tmp_path)["compiled"].version == "1.0"


def add_foreign(site, name, tag):
    """Install a package whose metadata name another system."""
    add(site, name)
    wheel = site / f"{name}-1.0.dist-info/WHEEL"
    wheel.write_text(wheel.read_text().replace("none-any", f"none-{tag}").replace("true", "false"))


def test_all_missing_wheels_are_named(site, index):
    for name in ("lacking", "absent", "there"):
        add(site, name, tag=f"py3-none-{linux(HERE)}")
    index.add("lacking", tag="py3-none-win_amd64")
    index.add("there", tag=f"py3-none-{linux(OTHER)}")
    text = refused("local", architecture=OTHER)
    assert f"2 have no wheel for Linux on {OTHER}" in text
    assert "absent 1.0: absent was not found" in text
    assert "lacking 1.0: lacking==1.0 has no wheels with a matching platform tag" in text
    assert "exclude_packages=['absent', 'lacking']" in text
    assert names(find("local", architecture=OTHER, exclude_packages=["absent", "lacking"])) == [
        ("there", "1.0")
    ]


def test_local_build_needs_same_platform(site):
    add(site, "built", tag=f"py3-none-{linux(HERE)}")
    (site / "built-1.0.dist-info/direct_url.json").write_text(
        '{"url": "file:///home/me/built", "dir_info": {}}'
    )
    assert names(find("local")) == [("built", "1.0")]
    text = refused("local", architecture=OTHER)
    assert "built 1.0 was installed from a folder and is compiled for this platform" in text


# --- lists and files ----------------------------------------------------------------------------


def test_list_is_resolved_once(index, tmp_path):
    index.add("wanted", "1.0", requires=["needed>=1", "windows; sys_platform == 'win32'"])
    index.add("wanted", "2.0", requires=["needed>=1"])
    index.add("needed", "1.5")
    found = find(["wanted<2"])
    assert names(found) == [("needed", "1.5"), ("wanted", "1.0")]
    packed = pack_all(found, tmp_path)
    index.add("needed", "1.6")
    asked = len(index.asked)
    again = find(["wanted<2"])
    assert [item.packed for item in again.items] == [packed["needed"], packed["wanted"]]
    assert len(index.asked) == asked
    assert names(find(["wanted"])) == [("needed", "1.6"), ("wanted", "2.0")]


def test_cached_resolution_works_without_index(index, tmp_path):
    index.add("wanted")
    pack_all(find(["wanted"]), tmp_path)
    index.close()
    (item,) = find(["wanted"]).items
    assert item.packed
    with pytest.raises(FarcallError, match="uv could not reach the package index") as caught:
        find(["another"])
    assert not isinstance(caught.value, SettingsError)


def test_extra_packages_respect_installed_versions(site, index):
    add(site, "needed", "1.0")
    add(site, "replaced", "1.0")
    for version in ("1.0", "2.0"):
        index.add("needed", version)
        index.add("replaced", version)
    index.add("more", requires=["needed"])
    found = find("local", extra_packages=["more", "replaced>=2"])
    assert names(found) == [("more", "1.0"), ("needed", "1.0"), ("replaced", "2.0")]
    assert [item.pin is None for item in found.items] == [False, True, False]


def test_pins_of_other_machine_prefer_installed_versions(site, index):
    add(site, "same", "1.0")
    add(site, "older", "1.0")
    add(site, "unused", "1.0")
    for name in ("older", "missing"):
        index.add(name, "2.0")
    pins = ["same==1.0", "older==2.0", "missing==2.0"]
    settings = environment.with_pins(Settings(packages="auto", architecture=HERE), pins)
    found = environment.find(settings)
    assert names(found) == [("missing", "2.0"), ("older", "2.0"), ("same", "1.0")]
    assert [item.pin is None for item in found.items] == [False, False, True]


def test_pins_need_no_index_for_extra_packages(site):
    add(site, "wanted", "1.0")
    settings = Settings(packages="local", extra_packages=["elsewhere"], architecture=HERE)
    assert environment.pins(settings) == ["wanted==1.0"]


def test_fitting_installed_versions_are_kept(site):
    add(site, "fitting", "1.5")
    add(site, "older", "1.0")
    wanted = [
        *("Fitting>=1", "older>=2", "absent", "fitting[more]"),
        *("elsewhere; sys_platform == 'win32'", "fitting<1"),
    ]
    lacking = [["older>=2", "absent", "fitting[more]==1.5", "fitting<1"]]
    settings = Settings(packages="local", architecture=HERE)
    assert [environment.lacking(settings, environment.find(settings), wanted)] == lacking
    left_out = Settings(exclude_packages=["Absent"], architecture=HERE)
    with pytest.raises(SettingsError, match="absent is in exclude_packages"):
        environment.lacking(left_out, None, wanted)


def test_runtime_packages_are_present():
    wanted = ["cloudpickle>=1", "obstore>=99", "absent"]
    settings = Settings(architecture=HERE)
    assert environment.lacking(settings, None, wanted) == ["obstore>=99", "absent"]


def test_unresolvable_list_quotes_uv(index):
    index.add("wanted")
    text = refused(["wanted==9"])
    assert "there is no version of wanted==9" in text
    index.add("windows-only", tag="py3-none-win_amd64")
    index.add("mac-only", tag="py3-none-macosx_11_0_arm64")
    text = refused(["wanted", "windows-only", "mac-only"])
    assert "-only" in text
    assert "exclude_packages" in text


def test_passwords_are_hidden(index, monkeypatch):
    secret = index.url.replace("http://", "http://me:s3cr3t@")
    monkeypatch.setenv("UV_DEFAULT_INDEX", secret)
    assert "s3cr3t" not in refused(["absent"])
    index.add("wanted")
    find(["wanted"])
    for note in cache.folder().iterdir():
        assert b"s3cr3t" not in note.read_bytes()


def test_requirements_file_supports_includes(index, tmp_path, monkeypatch):
    index.add("wanted", "1.0")
    index.add("limited", "1.0")
    index.add("limited", "2.0")
    index.add("by-the-project", "1.0")
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    project = tmp_path / "my-project"
    project.mkdir()
    pyproject = "[project]\nname='mine'\nversion='1'\ndependencies=['by-the-project']\n"
    (project / "pyproject.toml").write_text(pyproject)
    (tmp_path / "more.txt").write_text(f"--index-url {index.url}\n-c limits.txt\nlimited\n")
    (tmp_path / "limits.txt").write_text("limited<2\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(
        "# mine\nwanted ; python_version > '3'\n-r more.txt\n-e ./my-project\n"
    )
    found = find(str(requirements))
    expected = [("by-the-project", "1.0"), ("limited", "1.0"), ("wanted", "1.0")]
    assert names(found) == expected
    (stays,) = found.stays
    assert stays.why == "your own project: its source files are sent"
    assert set(pack_all(found, tmp_path)) == {name for name, _ in expected}
    asked = len(index.asked)
    find(str(requirements))
    assert len(index.asked) == asked
    (tmp_path / "limits.txt").write_text("limited<3\n")
    assert ("limited", "2.0") in names(find(str(requirements)))
    (project / "pyproject.toml").write_text(pyproject.replace("['by-the-project']", "[]"))
    assert "by-the-project" not in dict(names(find(str(requirements))))


def test_requirement_hashes_are_verified(index, tmp_path):
    index.add("wanted")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"wanted==1.0 --hash=sha256:{'0' * 64}\n")
    text = refused(str(requirements))
    assert "0" * 64 in text


def test_missing_requirements_file_is_named(tmp_path):
    assert f"{tmp_path}/gone.txt does not exist" in refused(f"{tmp_path}/gone.txt")


@pytest.fixture
def locked(index, tmp_path, site):
    """Project with a member and a lock file."""
    index.add("wanted", "1.0", requires=["needed"])
    index.add("needed", "1.0")
    index.add("development")
    index.add("of-the-member")
    project = tmp_path / "project"
    member = project / "member"
    member.mkdir(parents=True)
    (member / "pyproject.toml").write_text(
        "[project]\nname='member'\nversion='1'\nrequires-python='>=3.11'\n"
        "dependencies=['of-the-member']\n"
    )
    (project / "pyproject.toml").write_text(
        "[project]\nname='mine'\nversion='1'\nrequires-python='>=3.11'\n"
        "dependencies=['wanted', 'member', \"windows; sys_platform == 'win32'\"]\n"
        "[dependency-groups]\ndev=['development']\n"
        "[tool.uv]\npackage=false\n[tool.uv.sources]\nmember={workspace=true}\n"
        "[tool.uv.workspace]\nmembers=['member']\n"
    )
    index.add("windows")
    uv._run("lock", "--python", sys.executable, folder=project)
    index.add("needed", "2.0")
    return project


def test_lock_file_is_used_unchanged(locked, tmp_path):
    found = find(str(locked / "uv.lock"))
    assert names(found) == [("needed", "1.0"), ("of-the-member", "1.0"), ("wanted", "1.0")]
    assert pack_all(found, tmp_path)["needed"].version == "1.0"


def test_wheel_with_wrong_hash_is_rejected(locked, index, tmp_path):
    index.add("needed", "1.0", {"needed.py": "import evil\n"})
    assert "needed" in refused(str(locked / "uv.lock"))


def test_outdated_lock_file_is_rejected(locked):
    project = locked / "pyproject.toml"
    project.write_text(project.read_text().replace("'wanted',", "'wanted', 'development',"))
    assert "uv lock" in refused(str(locked / "uv.lock"))
    project.unlink()
    assert "no pyproject.toml next to it" in refused(str(locked / "uv.lock"))


def test_lock_builds_no_project(locked, tmp_path):
    """uv builds a project with dynamic metadata to check its lock, also with --no-build."""
    mark = tmp_path / "built"
    (locked / "backend.py").write_text(f"open({str(mark)!r}, 'w')\n")
    project = locked / "pyproject.toml"
    text = project.read_text().replace("package=false", "package=true")
    project.write_text(
        text.replace("dependencies=['wanted'", "dynamic=['dependencies']\n#")
        + "[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"
    )
    assert ("wanted", "1.0") in names(find(str(locked / "uv.lock")))
    assert not mark.exists()


# --- cache ------------------------------------------------------------------------------------


def test_cache_writable_by_others_is_ignored(site, tmp_path):
    add(site, "fine")
    pack_all(find("local"), tmp_path)
    assert find("local").items[0].packed
    assert cache.folder().stat().st_mode & 0o777 == 0o700
    cache.folder().chmod(0o777)
    assert find("local").items[0].packed is None


def test_missing_uv_is_named(index, monkeypatch):
    monkeypatch.setattr(uv.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="pip install uv"):
        find(["wanted"])
