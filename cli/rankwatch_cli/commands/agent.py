"""`rankwatch agent`: watch this node until SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rankwatch.settings import SentenceParser, add_flags, to_toml
from rankwatch_agent.agent import Agent, give_back_what_is_free
from rankwatch_agent.collectors import build_collectors, build_shared
from rankwatch_agent.runtime.config import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, AgentConfig, load_config
from rankwatch_agent.runtime.logs import configure_logging
from rankwatch_agent.sources.gpu.driver import Driver
from rankwatch_cli.output import show_text

logger = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.001
"""After which a thread that computes lets another one in. By default it is 5 ms, and a scrape
that needs the interpreter again and again waits as long for each collector that computes."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RELEASE_SIGNAL = signal.SIGUSR1
_RESUME_SIGNAL = signal.SIGUSR2
_SIGNALS = (*_STOP_SIGNALS, _RELEASE_SIGNAL, _RESUME_SIGNAL)


def main(arguments: Sequence[str]) -> int:
    """Run the agent; returns 0 after SIGTERM or SIGINT. Raises UserError and SettingError."""
    given = vars(_parser().parse_args(arguments))
    config = load_config(flags=given, environ=os.environ, file=given["config"])
    if given["print_config"]:
        show_text(to_toml(config.values, config.origins))
        return 0
    return _run(config.values)


def _run(config: AgentConfig) -> int:
    give_back_what_is_free()
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Blocked before any thread starts, so that only sigwait below receives them: a signal then
    # interrupts nothing half done.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    configure_logging(level=config.log_level, log_format=config.log_format)
    shared = build_shared(config)
    collectors = build_collectors(config, shared)
    # The driver is closed before the agent: a collector that waits for it then ends at once.
    with Agent(config, collectors, history=shared.history, services=shared.services), closing(shared.driver):
        # What has been loaded lives as long as the agent. Without this, each full garbage collection looks at
        # all of it again, and records that wait to become traces make these frequent.
        gc.collect()
        gc.freeze()
        _serve_until_stopped(shared.driver)
    return 0


def _serve_until_stopped(driver: Driver) -> None:
    """Serve until SIGTERM or SIGINT; SIGUSR1 releases the GPU driver, SIGUSR2 takes it up again."""
    while True:
        received = signal.sigwait(_SIGNALS)
        if signal.sigpending() & set(_STOP_SIGNALS):  # not after what others ask for
            received = signal.sigwait(_STOP_SIGNALS)
        if received == _RELEASE_SIGNAL:
            driver.release()
        elif received == _RESUME_SIGNAL:
            driver.resume()
        else:
            logger.info("stopping on %s", signal.Signals(received).name)
            return


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch agent",
        usage="rankwatch agent [--config FILE] [--print-config] [--SETTING VALUE ...]",
        description=(
            "Watch the training runs and the hardware of this node and serve /metrics.\n"
            f"Each flag can also be given as {ENVIRONMENT_PREFIX}<SETTING> or in the TOML file;\n"
            "a flag wins over the environment, the environment over the file. In flags and environment,\n"
            "lists are written a,b and tables name=number,name=number.\n\n"
            "SIGUSR1 makes it release the GPU driver, so that it can be unloaded; SIGUSR2 takes it up again."
        ),
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"TOML file of settings; also {CONFIG_VARIABLE}"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force as TOML, and exit"
    )
    add_flags(parser, AgentConfig)
    return parser
