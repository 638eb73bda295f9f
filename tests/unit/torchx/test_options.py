"""Files found by TorchX in the working directory."""

import pytest
import torchx.runner.config

from farcall import SettingsError
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.kubernetes.options import KubernetesOptions


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Home folder and working directory, in which TorchX looks for files."""
    home, here = tmp_path / "home", tmp_path / "here"
    for each in (home, here):
        each.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    monkeypatch.setattr(torchx.runner.config, "DEFAULT_CONFIG_DIRS", [str(home), str(here)])
    return home, here


@pytest.mark.parametrize(
    ("section", "option", "options"),
    [
        ("kubernetes_job", "kubeconfig", KubernetesOptions()),
        ("kubernetes_job", "context", KubernetesOptions()),
        ("aws_batch", "Profile", BatchOptions(queue="q")),
    ],
)
def test_found_file_must_not_choose_credentials(folders, monkeypatch, section, option, options):
    home, here = folders
    for each in (home, here):
        (each / ".torchxconfig").write_text(f"[{section}]\n{option} = theirs\n")
    with pytest.raises(SettingsError, match=f"here/.torchxconfig sets {option.lower()}: a file"):
        options.settings()
    monkeypatch.setenv("TORCHXCONFIG", str(here / ".torchxconfig"))
    options.settings()
    monkeypatch.delenv("TORCHXCONFIG")
    (here / ".torchxconfig").unlink()
    options.settings()


def test_found_file_of_others_is_rejected(folders):
    path = folders[1] / ".torchxconfig"
    path.write_text("[cli:run]\nscheduler = kubernetes_job\n")
    KubernetesOptions().settings()
    path.chmod(0o646)
    with pytest.raises(SettingsError, match="other users of this machine can write to it"):
        KubernetesOptions().settings()
