"""The `hone` command: one file per verb in `hone_cli.commands`."""

import os
import sys
from collections.abc import Sequence

import typer

from hone_cli.commands.audit import audit
from hone_cli.commands.doctor import doctor
from hone_cli.commands.down import down
from hone_cli.commands.dpo import dpo
from hone_cli.commands.evaluate import evaluate
from hone_cli.commands.export import export
from hone_cli.commands.grade import grade
from hone_cli.commands.init import init
from hone_cli.commands.kappa import kappa
from hone_cli.commands.reward_model import reward_model
from hone_cli.commands.rollout import rollout
from hone_cli.commands.runs import runs
from hone_cli.commands.sft import sft
from hone_cli.commands.stop import stop
from hone_cli.commands.train import train
from hone_cli.commands.up import up
from hone_cli.errors import FAILED, INTERRUPTED, QUIET_GRPC, CliError
from hone_cli.text import safe

VERBS = (
    (init, "Write a small example that works."),
    (up, "Start NATS and all services on this machine."),
    (down, "Drain and stop the suite of a folder."),
    (doctor, "Check what the suite needs of this machine."),
    (sft, "Teach the model by example."),
    (dpo, "Train the agent on pairs of responses."),
    (reward_model, "Train a reward model on pairs of responses."),
    (train, "Train the agent on its rewards, --resume or --rollback."),
    (evaluate, "Measure a policy without training it."),
    (grade, "Grade responses, or check a grader (--validate, --lint)."),
    (kappa, "Measure how far people and judges agree."),
    (runs, "List runs, show one, or compare some."),
    (stop, "Stop a run; an update under way is finished first."),
    (export, "Write what a run learned for transformers, peft and vLLM."),
    (rollout, "Show one rollout, or list a run's rollouts."),
    (audit, "Check the invariants of a run's log."),
)
"""Commands and their line in --help, in the order of first use."""


def make_app() -> typer.Typer:
    """Builds the command line."""
    app = typer.Typer(
        name="hone",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Turn feedback into training signal for agents that use tools.",
    )
    for verb, line in VERBS:
        app.command(short_help=line)(verb)
    return app


def main(arguments: Sequence[str]) -> int:
    """Runs one command; whatever goes wrong is a sentence on stderr and an exit code."""
    os.environ.setdefault(*QUIET_GRPC)
    try:
        make_app()(args=list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except CliError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away, as in `hone runs | head`; silence also the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the outermost boundary: people get a sentence, never a traceback
        if os.environ.get("HONE_DEBUG"):
            raise
        _say(
            f"a defect of hone: {type(error).__name__}: {error}; "
            "HONE_DEBUG=1 shows where, please report it"
        )
        return FAILED
    return 0


def run() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def _say(text: str) -> None:
    # Names from files and services may hold anything.
    print(f"hone: {safe(text)}", file=sys.stderr)


if __name__ == "__main__":
    run()
