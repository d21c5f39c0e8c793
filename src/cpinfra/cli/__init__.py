"""The command line: one module per command, imported only when that command is called."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import click

from .. import __version__
from .output import Output
from .output import is_closed

INTERNAL_ERROR = 3
"""Not Python's 1, which would say that the machine failed: it only could not be told."""
INTERRUPTED = 130


class Lazy(NamedTuple):
    """A command that is imported when it is called; its line in the help is known without."""

    module: str
    short_help: str


COMMANDS = {
    "build": Lazy(
        module="build", short_help="Find out what this machine can run, prove it, and write down how."
    ),
    "prove": Lazy(module="prove", short_help="Prove that this machine can run 2D context parallelism."),
    "selftest": Lazy(
        module="selftest", short_help="Plant every fault, and see that each is noticed and blamed right."
    ),
    "inventory": Lazy(module="inventory", short_help="Say what is there: the host and its GPUs."),
    "plan": Lazy(module="plan", short_help="Say which 2D context-parallel meshes a number of GPUs can test."),
    "probe": Lazy(module="probe", short_help="Say what the software is, and whether it fits the GPUs."),
    "show": Lazy(module="show", short_help="Show a report that was written before."),
    "check": Lazy(module="check", short_help="Say whether a report is still true."),
    "schema": Lazy(module="schema", short_help="Print the JSON schema of the reports."),
}


INSTEAD = {
    ("prove", "--rehearse"): "--device cpu",
    ("selftest", "--rehearse"): "--device cpu",
    ("build", "--ranks"): "the number alone, as in cpinfra build 8",
    ("build", "--device"): "--rehearse for the CPU; the GPUs are taken where there are any",
}
"""Options of another command that mean this here."""
NUMBERS = {"prove": "--ranks", "selftest": "--ranks", "plan": "--gpus"}
"""Options of the number that other commands take alone, as `build 8` does."""


class LazyGroup(click.Group):
    """A group whose commands are the functions of the same name in the modules that `COMMANDS` names."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import a command; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name].module}", __name__)
        command = getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"cpinfra.cli.{COMMANDS[cmd_name].module}.{cmd_name} is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it.

        Raises:
            click.UsageError: there is no such command; it names the one that may have been meant.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as problem:
            meant = _resembling(args[0])
            if meant is None:
                raise
            raise click.UsageError(f"{problem.message} Did you mean {meant!r}?", ctx) from problem

    def invoke(self, ctx: click.Context) -> Any:
        """As click does it.

        Raises:
            click.UsageError: the command line makes no sense; it names what another command's words are here.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as problem:
            instead = _instead(problem)
            if not instead:
                raise
            raise click.UsageError(f"{problem.message.rstrip('.')}. {instead}", problem.ctx) from problem

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The list in the help, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.short_help) for name, lazy in COMMANDS.items()])


def _resembling(name: str) -> str | None:
    """The command that a wrong name is nearest to; None where it is near to none."""
    import difflib

    return next(iter(difflib.get_close_matches(name, COMMANDS, n=1)), None)


def _instead(problem: click.UsageError) -> str:
    """What this command calls what it was given in another's words; empty where it has no word for it."""
    command = (problem.ctx.info_name or "") if problem.ctx is not None else ""
    if isinstance(problem, click.NoSuchOption):
        meant = INSTEAD.get((command, problem.option_name), "")
    else:
        number = re.search(r"unexpected extra argument \((\d+)\)", problem.message)
        meant = f"{NUMBERS[command]} {number[1]}" if number and command in NUMBERS else ""
    return f"With {command} it is {meant}" if meant else ""


EPILOG = """\b
Example, on any machine with a torch:
  cpinfra build --rehearse --python /path/to/venv/bin/python

Run 'cpinfra COMMAND --help' for what a command does and what its exit codes mean."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, "--version", prog_name="cpinfra", message="%(prog)s %(version)s")
def cli() -> None:
    """Prove that a machine can run 2D context parallelism, and write down how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The program `cpinfra`; returns its exit code.

    Args:
        arguments: the command line without the program's name; that of the process by default.
    """
    _mend_standard_streams()
    _heed_signals()
    try:
        code = cli.main(arguments, prog_name="cpinfra", standalone_mode=False)
    except click.ClickException as problem:
        code = _shown(problem)
    except (click.Abort, KeyboardInterrupt):
        _end_at_signals(INTERRUPTED)
        Output(sys.stdout).give_up("interrupted")  # what was cut short may wait for its reader for ever
        code = _failed("cpinfra: interrupted\n", INTERRUPTED)
    except SystemExit:
        code = 0  # click's own end, with 1, where a reader has had enough of the help
    except OSError as error:
        code = _failed(f"cpinfra: {error}\n")
    except ImportError as error:
        code = _failed(f"cpinfra: {error}: this installation is incomplete; install cpinfra anew\n")
    except Exception:  # noqa: BLE001 - the outermost frame: an error of ours must not read as a verdict
        import traceback

        code = _failed(f"{traceback.format_exc()}cpinfra: this is an error of cpinfra, please report it\n")
    code = code if isinstance(code, int) else 0
    _end_at_signals(code)
    for stream in (sys.stdout, sys.stderr):
        Output(stream).flush()
    return code


def _heed_signals() -> None:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, from its start on; under nohup SIGHUP does nothing."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


def _end_at_signals(code: int) -> None:
    """From here on the exit code is decided: a second Ctrl-C ends the process, but not by signal."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: os._exit(code))


def _mend_standard_streams() -> None:
    """Open what the caller closed (`>&-`): else the next file of ours would get its number, and our words.

    A stream that is closed, or whose descriptor is, becomes None: Python's own way to say that there is none.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
            is_open = True
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            is_open = False
        if not is_open or is_closed(getattr(sys, name)):
            setattr(sys, name, None)


def _shown(problem: click.ClickException) -> int:
    try:
        problem.show()
    except OSError:
        pass  # nobody can read it; the exit code says it too
    return problem.exit_code


def _failed(text: str, code: int = INTERNAL_ERROR) -> int:
    Output(sys.stderr).write(text)
    return code
