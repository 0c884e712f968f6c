"""The launcher in the background: `python -m hone_cli.launcher OPTIONS_AS_JSON`, started by `hone up --detach`."""

import json
import sys
from pathlib import Path

from hone_cli.launcher.plan import UpOptions
from hone_cli.launcher.state import AlreadyRunningError
from hone_cli.launcher.up import run_suite


def main() -> int:
    """Runs the suite; what goes wrong is the last line of the log."""
    given = json.loads(sys.argv[1])
    options = UpOptions(
        folder=Path(given["folder"]),
        engine=given["engine"],
        only=tuple(given["only"]),
        replicas=given["replicas"],
        log_level=given["log_level"],
        first_port=given["first_port"],
    )
    try:
        return run_suite(options, detached=True, colour=False)
    except (AlreadyRunningError, OSError, ValueError) as error:
        print(error, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
