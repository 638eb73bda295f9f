"""The Covalent door: ``executor="awsbatch"`` and ``ct.executor.AWSBatchExecutor``.

Covalent takes the class from the module that the entry point names, and the module's last name for
the plugin's (covalent/executor/__init__.py, 0.240).
"""

from __future__ import annotations

from farcall.config.settings import Settings
from farcall.covalent.plugin import options as covalent_options
from farcall.covalent.plugin import packing, restart
from farcall.covalent.plugin.direct import DirectExecutor
from farcall.covalent.plugin.managed import ManagedExecutor

EXECUTOR_PLUGIN_NAME = covalent_options.CONSTRUCTOR
_EXECUTOR_PLUGIN_DEFAULTS = covalent_options.plugin_defaults()
restart.keep_state_over_restarts()
packing.install()


class AWSBatchExecutor(ManagedExecutor, DirectExecutor):
    """Runs electrons as AWS Batch jobs.

    ::

        executor = ct.executor.AWSBatchExecutor(vcpu=2, memory=3.75, time_limit=300)

        @ct.electron(executor=executor)        # or executor="awsbatch"
        def train_svm(data, C, gamma): ...

    An option is looked up in the arguments, then in ``FARCALL_<OPTION>``, then in the section
    ``[executors.awsbatch]`` of Covalent's configuration. Options are attributes, which may be set
    before the dispatch.

    Args:
        log_stdout: File that a task's stdout is appended to beside Covalent's own; relative to the
            dispatch's folder of results.
        log_stderr: The same for stderr.
        **options: See `farcall.Settings`.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.
    """

    def boto_session_options(self) -> dict[str, str]:
        """Return the keyword arguments for a ``boto3.Session`` of the same account and region."""
        settings = self.settings
        options = {"region_name": settings.region}
        if settings.profile != Settings.model_fields["profile"].default:
            options["profile_name"] = settings.profile
        return options


covalent_options.register(__name__)
