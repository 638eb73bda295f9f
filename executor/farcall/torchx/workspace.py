"""Workspaces of TorchX's apps: the folder that ``torchx run`` takes along, with docker or without.

TorchX asks for a workspace's build in every run, dry or not: ``torchx run`` names the working
directory where nobody names another. What is built here reads files, and asks nobody for anything:
an archive in a file without a name, and a role whose command fetches it (`farcall.model.
start_script`). It is stored when the app is scheduled.

==========  ======================================================================================
mode        what a role's workspace becomes
==========  ======================================================================================
``none``    nothing: the image has all that the app needs
``docker``  an image, by TorchX's own builder, the docker daemon of this machine and ``image_repo``
``s3``      an archive in farcall's bucket
``auto``    ``s3`` where a bucket is configured, and what a job fetches it with; else ``none``
==========  ======================================================================================

A scheduler inherits `FarcallWorkspaceMixin` before TorchX's `Scheduler`, and

* in ``_submit_dryrun`` has `dryrun_push_images` called first, which writes the images' names into
  the roles, and keeps in its request what that returns;
* in ``schedule`` has `push_images` called with that, and `store_workspaces` with the request's
  commands, before anything is submitted;
* in ``close`` has `close_workspaces` called.
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

from farcall.engine import workspaces
from farcall.engine.session import Session
from farcall.model.errors import SettingsError
from farcall.model.settings import Settings
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
"""Archives that wait for their app to be scheduled; a dry run's never is."""


@dataclass
class WorkspaceOpts(StructuredOpts):
    """What ``-cfg`` takes on workspaces; the text below each field is its help."""

    workspace_mode: str = AUTO
    """What becomes of --workspace: none (nothing), s3 (an archive in the bucket, which the job
    fetches; the image needs a shell, coreutils, and python3, curl or wget), docker (an image,
    built by this machine's docker and pushed to image_repo), auto (s3 where a bucket is configured
    and what the job fetches with, such as a job role; else none)."""

    workspace_dir: str | None = None
    """Folder in the container in which mode s3 unpacks the workspace and starts the command, an
    absolute path; the image's working directory if not given."""

    image_repo: str | None = None
    """Repository that mode docker pushes its images to, such as example.com/your/app."""

    quiet: bool = False
    """Whether mode docker prints nothing of its builds."""


class FarcallWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Workspaces for a scheduler of TorchX's; see this module.

    Attributes:
        OPTIONS: What its ``-cfg`` takes.
    """

    OPTIONS: ClassVar[type[FarcallOptions]]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[str, Archive] = {}
        self._built_by_docker: DockerWorkspaceMixin | None = None

    def workspace_opts(self) -> runopts:
        """Return the run options on workspaces."""
        return WorkspaceOpts.as_runopts()

    # --- a build, in every run ----------------------------------------------------------------

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Build a role's workspace, and change the role so that it runs in it.

        Args:
            role: The role; of mode ``s3`` its entrypoint and arguments change, of ``docker`` its
                image.
            cfg: The run options.
            build_cache: What was built for other roles of the app.

        Raises:
            SettingsError: An option is wrong, a file cannot be read, or there is no docker.
            NoRoomError: There is no room for the archive.
        """
        workspace = role.workspace
        if not workspace:
            return
        with self.OPTIONS.in_words():
            options = WorkspaceOpts.from_cfg(cfg)
            given = self._options(cfg)
            settings = given.settings()
            mode = _mode(options.workspace_mode, given, settings, workspace, build_cache)
            if mode == DOCKER:
                self._build_image(role, cfg, build_cache)
            elif mode == S3:
                self._build_archive(role, workspace, options, settings, build_cache)

    def _options(self, cfg: Mapping[str, CfgVal]) -> Any:
        """Return run options as those of the scheduler."""
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
                f"role {role.name}: there is no entrypoint, and an image's own cannot be run in a "
                "workspace; name one, or set workspace_mode=none",
                option="entrypoint",
            )
        # TorchX fills in macros in arguments, and not in an entrypoint, which is an argument now.
        if before is None:
            command[0] = command[0].replace("$", "$$")
        role.entrypoint, *role.args = wrap(command, fetched)

    def _keep(self, archive: Archive) -> Archive:
        """Keep an archive until its app is scheduled; one with the same content will do."""
        if archive.sha256 in self._kept:
            archive.close()
            archive = self._kept.pop(archive.sha256)
        self._kept[archive.sha256] = archive
        for oldest in list(self._kept)[:-_MOST_KEPT]:
            self._kept.pop(oldest).close()
        return archive

    # --- what is sent before an app is --------------------------------------------------------

    def dryrun_push_images(
        self, app: AppDef, cfg: Mapping[str, CfgVal]
    ) -> dict[str, tuple[str, str]]:
        """Write the names into the roles that images of this machine have once they are pushed.

        Returns:
            By image repository and tag, for `push_images`.

        Raises:
            SettingsError: There are such images, and no ``image_repo``.
        """
        if not any(role.image.startswith(_LOCAL_IMAGE) for role in app.roles):
            return {}
        if not cfg.get("image_repo"):
            images = ", ".join(r.image for r in app.roles if r.image.startswith(_LOCAL_IMAGE))
            raise wrong_option(
                "image_repo",
                None,
                f"{images} is an image of this machine; name the repository it is pushed to",
            )
        return self._docker().dryrun_push_images(app, cfg)

    def push_images(self, images_to_push: dict[str, tuple[str, str]]) -> None:
        """Push images, by TorchX's own code.

        Raises:
            SettingsError: There is no docker, or it did not push.
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
        """Store the workspaces that commands fetch, unless they are there.

        The commands then say in which region the bucket really is.

        Args:
            session: With which the app is submitted.
            commands: Commands of all nodes; those that fetch a workspace are changed in place.

        Raises:
            SettingsError: There is no such bucket, or a workspace was built by another scheduler
                and is not in it.
            ServiceError: S3 refused or could not be reached.
        """
        for command in commands:
            fetched, plain = unwrap(command)
            if fetched is None:
                continue
            archive = self._kept.get(fetched.sha256)
            if archive is not None:
                found = await workspaces.store(session, fetched, archive)
            else:
                found = await workspaces.stored(session, fetched)
            command[:] = wrap(plain, found)

    def close_workspaces(self) -> None:
        """Let go of the archives that no app was scheduled with."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _docker(self) -> DockerWorkspaceMixin:
        """Return TorchX's builder; its client takes long to import."""
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
    """Return what becomes of a workspace; where ``auto`` is none, that is told once."""
    if wanted not in _MODES:
        raise wrong_option("workspace_mode", wanted, f"use {' or '.join(_MODES)}")
    if wanted not in (AUTO, S3):
        return wanted
    home = _home_in(workspace)
    if wanted == AUTO and (why := home or _why_not(given, settings)):
        if AUTO not in build_cache:  # said once for all roles
            build_cache[AUTO] = why
            _log.warning(
                "the workspace %s stays here: %s; workspace_mode=none says that this is wanted",
                *(workspace, why),
            )
        return NONE
    if home:
        raise SettingsError(
            f"{home}; go to the folder that is meant, name it by --workspace, or set "
            "workspace_mode=none",
            option="workspace",
        )
    return S3


def _why_not(given: FarcallOptions, settings: Settings) -> str:
    """Say what the bucket lacks for workspaces; empty for nothing."""
    if "s3_bucket_name" not in settings.model_fields_set or not settings.s3_bucket_name:
        return "no bucket is configured (run option bucket, or s3_bucket_name in farcall.toml)"
    return given.unfetchable(settings)


def _home_in(workspace: Workspace) -> str:
    """Tell that a workspace would take along somebody's home; empty where it does not.

    ``torchx run`` takes the working directory unasked, and keys lie in a home.
    """
    for source in _sources(workspace):
        try:
            home = Path.home().resolve()
            path = source.path.expanduser().resolve()
        except (OSError, RuntimeError):  # nobody knows where it is, or links in a circle
            continue
        if path == home or path in home.parents:
            return f"workspace {source.path} is your home directory, or holds it"
    return ""


def _sources(workspace: Workspace) -> list[Source]:
    """Return what a workspace is made of.

    Raises:
        SettingsError: It is not of this machine's files.
    """
    found = []
    for project, target in workspace.projects.items():
        path = project.removeprefix(_FILE_URL)
        if "://" in path:
            raise SettingsError(
                f"workspace is {project!r}: use a folder of this machine, or "
                "workspace_mode=docker",
                option="workspace",
            )
        found.append(Source(Path(path), target))
    return found


def _no_docker(error: Exception) -> SettingsError:
    text = str(error).partition("\n")[0]
    return SettingsError(
        f"workspace_mode is docker, and docker did not do its part: {text}; start its daemon and "
        "log in to image_repo, or set workspace_mode=s3 or none",
        option="workspace_mode",
    )
