"""From a configuration to a running server: check the machine, bind the port, start the tree."""

import functools
import logging
from collections.abc import Iterable

from pagelet.agent.doctor.before_serving import check_before_serving
from pagelet.agent.doctor.checks import Finding
from pagelet.agent.launch import ApiLaunch, launch_api
from pagelet.agent.settings import ServeSettings
from pagelet.agent.supervisor.managed import ManagedCore
from pagelet.agent.supervisor.node import run_node
from pagelet.agent.supervisor.startup_view import StartupView
from pagelet.agent.supervisor.supervisor import StartError, Supervisor
from pagelet.engine.core.launch import CoreLaunch, launch_core, options_of_engine
from pagelet.process.listener import ListenError, bind, url
from pagelet.process.logs import configure_logging, fail
from pagelet.process.managed import CannotStart, Managed
from pagelet.process.open_files import raise_open_file_limit
from pagelet.process.runtime_dir import RuntimeDir
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION

log = logging.getLogger(__name__)


def run_server(options: EngineOptions, settings: ServeSettings) -> int:
    """Serves until told to stop; returns the exit code. The last line on stderr says why it could
    not."""
    configure_logging(settings.log_level, settings.log_format, "supervisor")
    raise_open_file_limit()
    try:
        _refuse_what_fails(check_before_serving(options))
        if options.parallel.node_rank > 0:
            return run_node(options, settings)
        return _supervise(options, settings)
    except ListenError as error:
        return fail(log, str(error), EXIT_CONFIGURATION, settings.log_format)
    except StartError as error:
        return fail(log, str(error), error.exit_code, settings.log_format)
    except CannotStart as error:
        return fail(log, str(error), 1, settings.log_format)


def _supervise(options: EngineOptions, settings: ServeSettings) -> int:
    listener = bind(settings.host, settings.port)
    runtime = RuntimeDir()
    try:
        ranks = range(options.parallel.data_parallel_size)
        cores = [
            ManagedCore(
                f"engine core {index}",
                functools.partial(
                    launch_core,
                    CoreLaunch(
                        options=options_of_engine(options, index),
                        engine_index=index,
                        socket_path=runtime.file(f"core-{index}.socket"),
                        heartbeat_path=runtime.file(f"core-{index}.heartbeat"),
                        log_level=settings.log_level,
                        log_format=settings.log_format,
                    ),
                ),
                runtime.file(f"core-{index}.heartbeat"),
                settings.step_timeout,
            )
            for index in ranks
        ]
        launch = ApiLaunch(
            options=options,
            settings=settings,
            listen_fd=listener.fileno(),
            socket_paths=[runtime.file(f"core-{index}.socket") for index in ranks],
            heartbeat_paths=[runtime.file(f"core-{index}.heartbeat") for index in ranks],
        )
        supervisor = Supervisor(
            Managed("API server", functools.partial(launch_api, launch, listener)),
            cores,
            drain_timeout=settings.drain_timeout,
            view=StartupView(url(listener)),
        )
        return supervisor.run()
    finally:
        runtime.close()
        listener.close()


def _refuse_what_fails(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.status == "fail":
            raise StartError(finding.words, EXIT_CONFIGURATION)
        if finding.status == "warn":
            log.warning(finding.words)
