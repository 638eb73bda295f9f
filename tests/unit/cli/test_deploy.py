"""``farcall deploy`` without an account."""

from click.testing import CliRunner

from farcall.cli.deploy import deploy


def test_dry_run_without_credentials_shows_resources(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    done = CliRunner().invoke(deploy, ["--dry-run", "--compute", "fargate"])
    assert (done.exit_code, done.exception) == (0, None)
    assert "queue       farcall-fargate" in done.output
    assert "no account was read" in done.output
