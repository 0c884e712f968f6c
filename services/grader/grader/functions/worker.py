"""A process that runs reward functions. Run as `python -m grader.functions.worker`.

It reads one question after the other, {"function", "style", "arguments"}, says {"loaded": true} once the function is
imported, and answers {"score", "parts"} or {"error"}. What functions print goes nowhere; whoever started the process
kills it at the time limit, and the kernel does if the grader is gone.
"""

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from grader.functions import frames
from grader.functions.registry import load_function
from grader.functions.styles import call

_PR_SET_PDEATHSIG = 1
DETAIL = 500
"""Characters of an error that are told."""


def main() -> None:
    """Answer until the questions end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Functions may read and print as they like.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    loaded: dict[str, Callable[..., Any]] = {}
    own = os.getpid()
    while (question := frames.read(questions)) is not None:
        answer = _answer(question, loaded, answers)
        if os.getpid() != own:
            # A copy that the function forked: its answer would be taken for that to the next question.
            os._exit(0)
        _say(answers, answer)


def _answer(question: Any, loaded: dict[str, Callable[..., Any]], answers: BinaryIO) -> Any:
    name = question["function"]
    # Foreign code raises anything, SystemExit too; all of it is the answer.
    try:
        if name not in loaded:
            loaded[name] = load_function(name)
        _say(answers, {"loaded": True})
        score, parts = call(loaded[name], question["style"], question["arguments"])
    except BaseException as err:
        return {"error": _told(err), "where": _where(err)}
    return {"score": score, "parts": parts}


def _told(err: BaseException) -> str:
    """Return an error for people; one that cannot even be written is its class."""
    try:
        return f"{type(err).__name__}: {err}"[:DETAIL]
    except Exception:  # Its own method raises whatever it likes.
        return type(err).__name__


def _where(err: BaseException) -> str:
    """Return the innermost line of code, for people."""
    frames_of = traceback.extract_tb(err.__traceback__)
    return f"{frames_of[-1].filename}:{frames_of[-1].lineno}" if frames_of else ""


def _say(answers: BinaryIO, message: Any) -> None:
    answers.write(frames.encode(message))
    answers.flush()


if __name__ == "__main__":
    main()
