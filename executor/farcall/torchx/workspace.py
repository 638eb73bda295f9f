"""Workspaces of TorchX apps: the folder that ``torchx run`` uploads.

TorchX builds a workspace in every run, dry or not: by default ``torchx run`` uses the working
directory. The build only reads files and makes no requests. Its results are an archive in an
unnamed temporary file, and a role whose command downloads the archive
(`farcall.model.start_script`). The archive is uploaded when the app is scheduled.

==========  ======================================================================================
mode        result for a role's workspace
==========  ======================================================================================
``none``    nothing: the image contains everything that the app needs
``docker``  an image, from TorchX's own builder, the local Docker daemon and ``image_repo``
``s3``      an archive in farcall's bucket
``auto``    ``s3`` if a bucket and the job's access to it are configured; otherwise ``none``
==========  ======================================================================================

A scheduler inherits `FarcallWorkspaceMixin` before TorchX's `Scheduler`, and

* in ``_submit_dryrun`` first calls `dryrun_push_images`, which writes the images' names into the
  roles, and keeps its return value in the request;
* in ``schedule`` calls `push_images` with that value, and `store_workspaces` with the request's
  commands, before the submission;
* in ``close`` calls `close_workspaces`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torchx.schedulers.api import StructuredOpts
from torchx.specs import MISSING, AppDef, CfgVal, Role, Workspace, runopts
from torchx.workspace.api import WorkspaceMixin

from farcall.config.settings import Settings
from farcall.engine import workspaces
from farcall.engine.session import Session
from farcall.model.errors import SettingsError
from farcall.model.start_script import HERE, unwrap, wrap
from farcall.payload.archive import Archive, Source, pack
from farcall.torchx.options import FarcallOptions, wrong_option

if TYPE_CHECKING:
    from torchx.workspace.docker_workspace import DockerWorkspaceMixin

_log = logging.getLogger("farcall")

AUTO, NONE, DOCKER, S3 = "auto", "none", "docker", "s3"
_MODES = (AUTO, NONE, DOCKER, S3)
_LOCAL_IMAGE = "sha256:"
_FILE_URL = "file://"
_MOST_KEPT = 16
"""Maximum number of archives kept for scheduling; dry runs' are never scheduled."""


@dataclass
class WorkspaceOpts(StructuredOpts):
    """Workspace options for ``-cfg``; the text below each field is its help."""

    workspace_mode: str = AUTO
    """Use of --workspace: none (ignored), s3 (an archive in the bucket, which the job
    downloads; the image needs a shell, coreutils, and python3, curl or wget), docker (an image,
    built with the local Docker and pushed to image_repo), auto (s3 if a bucket is configured, with
    the job's access to it, such as a job role; otherwise none)."""

    workspace_dir: str | None = None
    """Absolute path in the container where mode s3 unpacks the workspace and starts the command;
    by default the image's working directory."""

    image_repo: str | None = None
    """Repository for the images of mode docker, such as example.com/your/app."""

    quiet: bool = False
    """Whether to hide the build output of mode docker."""


class FarcallWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Workspaces for a TorchX scheduler; see the module's docstring.

    Attributes:
        OPTIONS: Type of the scheduler's ``-cfg`` options.
    """

    OPTIONS: ClassVar[type[FarcallOptions]]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[str, Archive] = {}
        self._built_by_docker: DockerWorkspaceMixin | None = None

    def workspace_opts(self) -> runopts:
        """Return the workspace run options."""
        return WorkspaceOpts.as_runopts()

    # --- build, in every run ------------------------------------------------------------------

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Build a role's workspace, and change the role so that it runs in the workspace.

        Args:
            role: The role. Mode ``s3`` changes its entrypoint and arguments, ``docker`` its image.
            cfg: The run options.
            build_cache: Builds for the app's other roles.

        Raises:
            SettingsError: An option is wrong, a file cannot be read, or docker is missing.
            NoRoomError: The disk is too full for the archive.
        """
        workspace = role.workspace
        if not workspace:
            return
        options = WorkspaceOpts.from_cfg(cfg)
        given = self._options(cfg)
        settings = given.settings()
        mode = _mode(options.workspace_mode, given, settings, workspace, build_cache)
        if mode == DOCKER:
            self._build_image(role, cfg, build_cache)
        elif mode == S3:
            self._build_archive(role, workspace, options, settings, build_cache)

    def _options(self, cfg: Mapping[str, CfgVal]) -> Any:
        return cfg if isinstance(cfg, self.OPTIONS) else self.OPTIONS.from_cfg(cfg)

    def _build_image(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        from docker.errors import DockerException

        try:
            self._docker().caching_build_workspace_and_update_role(role, cfg, build_cache)
        except (DockerException, OSError) as error:
            raise _no_docker(error) from None

    def _build_archive(
        self,
        role: Role,
        workspace: Workspace,
        options: WorkspaceOpts,
        settings: Settings,
        build_cache: dict[object, object],
    ) -> None:
        if (S3, workspace) not in build_cache:
            build_cache[S3, workspace] = self._keep(pack(_sources(workspace), settings.cache_dir))
        archive = build_cache[S3, workspace]
        assert isinstance(archive, Archive)  # noqa: S101  # says so to the type checker
        fetched = workspaces.planned(settings, archive, options.workspace_dir or HERE)
        before, command = unwrap([role.entrypoint, *role.args])
        if command[0] == MISSING:
            raise SettingsError(
                f"role {role.name} has no entrypoint, and an image's own entrypoint cannot run "
                "in a workspace. Specify an entrypoint, or set workspace_mode=none.",
                option="entrypoint",
            )
        # TorchX replaces macros only in arguments, and the entrypoint has become an argument.
        if before is None:
            command[0] = command[0].replace("$", "$$")
        role.entrypoint, *role.args = wrap(command, fetched)

    def _keep(self, archive: Archive) -> Archive:
        """Keep an archive until its app is scheduled; equal archives are kept once."""
        if archive.sha256 in self._kept:
            archive.close()
            archive = self._kept.pop(archive.sha256)
        self._kept[archive.sha256] = archive
        for oldest in list(self._kept)[:-_MOST_KEPT]:
            self._kept.pop(oldest).close()
        return archive

    # --- uploads before the submission --------------------------------------------------------

    def dryrun_push_images(
        self, app: AppDef, cfg: Mapping[str, CfgVal]
    ) -> dict[str, tuple[str, str]]:
        """Write the names that local images will have after the push into the roles.

        Returns:
            Local image to repository and tag, for `push_images`.

        Raises:
            SettingsError: There are local images, and ``image_repo`` is not set.
        """
        if not any(role.image.startswith(_LOCAL_IMAGE) for role in app.roles):
            return {}
        if not cfg.get("image_repo"):
            images = ", ".join(r.image for r in app.roles if r.image.startswith(_LOCAL_IMAGE))
            raise wrong_option(
                "image_repo",
                None,
                f"{images} is a local image; specify the repository to push it to",
            )
        return self._docker().dryrun_push_images(app, cfg)

    def push_images(self, images_to_push: dict[str, tuple[str, str]]) -> None:
        """Push images with TorchX's own code.

        Raises:
            SettingsError: Docker is missing, or the push failed.
        """
        if not images_to_push:
            return
        from docker.errors import DockerException

        try:
            self._docker().push_images(images_to_push)
        except (DockerException, OSError, RuntimeError) as error:
            raise _no_docker(error) from None

    async def store_workspaces(
        self, session: Session, commands: Iterable[MutableSequence[str]]
    ) -> None:
        """Upload the workspaces that commands download, unless they exist.

        The commands then name the bucket's actual region.

        Args:
            session: The session that submits the app.
            commands: Commands of all nodes; those that download a workspace are changed in place.

        Raises:
            SettingsError: The bucket does not exist, or it lacks a workspace that another
                scheduler built.
            ServiceError: S3 rejected a call or could not be reached.
        """
        for command in commands:
            fetched, plain = unwrap(command)
            if fetched is None:
                continue
            archive = self._kept.get(fetched.sha256)
            if archive is not None:
                archives = await workspaces.store(session, fetched, archive)
            else:
                archives = await workspaces.stored(session, fetched)
            command[:] = wrap(plain, archives)

    def close_workspaces(self) -> None:
        """Close the archives whose app was not scheduled."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _docker(self) -> DockerWorkspaceMixin:
        """Return TorchX's builder, whose docker client takes long to import."""
        if self._built_by_docker is None:
            from torchx.workspace.docker_workspace import DockerWorkspaceMixin

            self._built_by_docker = DockerWorkspaceMixin()
        return self._built_by_docker


def _mode(
    wanted: str,
    given: FarcallOptions,
    settings: Settings,
    workspace: Workspace,
    build_cache: dict[object, object],
) -> str:
    """Return a workspace's mode; if ``auto`` becomes ``none``, log it once."""
    if wanted not in _MODES:
        raise wrong_option("workspace_mode", wanted, f"use {' or '.join(_MODES)}")
    if wanted not in (AUTO, S3):
        return wanted
    home = _home_in(workspace)
    if wanted == AUTO and (why := home or _why_not(given, settings)):
        if AUTO not in build_cache:  # log it once for all roles
            build_cache[AUTO] = why
            _log.warning(
                "the workspace %s is not uploaded: %s. Set workspace_mode=none to suppress "
                "this warning.",
                *(workspace, why),
            )
        return NONE
    if home:
        raise SettingsError(
            f"{home}. Change to the intended folder, specify it with --workspace, or set "
            "workspace_mode=none.",
            option="workspace",
        )
    return S3


def _why_not(given: FarcallOptions, settings: Settings) -> str:
    """Return why the bucket cannot be used for workspaces; empty if it can."""
    if "s3_bucket_name" not in settings.model_fields_set or not settings.s3_bucket_name:
        return "no bucket is configured (run option bucket, or s3_bucket_name in farcall.toml)"
    return given.unfetchable(settings)


def _home_in(workspace: Workspace) -> str:
    """Return an error text if a workspace includes the home folder; empty otherwise.

    ``torchx run`` uses the working directory by default, and a home folder contains keys.
    """
    for source in _sources(workspace):
        try:
            home = Path.home().resolve()
            path = source.path.expanduser().resolve()
        except (OSError, RuntimeError):  # no home directory, or a symlink loop
            continue
        if path == home or path in home.parents:
            return f"workspace {source.path} is your home directory, or contains it"
    return ""


def _sources(workspace: Workspace) -> list[Source]:
    """Return a workspace's source folders.

    Raises:
        SettingsError: A folder is not on this machine.
    """
    folders = []
    for project, target in workspace.projects.items():
        path = project.removeprefix(_FILE_URL)
        if "://" in path:
            raise SettingsError(
                f"workspace is {project!r}. Use a folder on this machine, or "
                "workspace_mode=docker.",
                option="workspace",
            )
        folders.append(Source(Path(path), target))
    return folders


def _no_docker(error: Exception) -> SettingsError:
    text = str(error).partition("\n")[0]
    return SettingsError(
        f"workspace_mode is docker, but docker failed: {text}. Start its daemon and log in to "
        "image_repo, or set workspace_mode=s3 or none.",
        option="workspace_mode",
    )
