"""Ties a process to its parent: the kernel kills it when the parent dies, however the parent dies.

Run as a script, `python -I -S leash.py PARENT_PID COMMAND ...`; it replaces itself by the command. It imports
nothing of Hone. A function run between fork and exec in the parent would be unsafe next to threads; a process of its
own is not.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks the kernel for SIGKILL at the parent's death, then becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"leash: prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the request was made; then nobody would ever kill us.
    if os.getppid() != parent:
        sys.exit("leash: the launcher is gone")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"leash: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
