"""Makes one sandbox with the sandbox service's own backend and says how it is isolated; run by `hone doctor`.

A process of its own, as the backend forks. Prints JSON: {"isolation": ..., "detail": ...} or {"error": ...}.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path


async def probe(folder: Path) -> dict[str, str]:
    """Starts the backend in an empty folder, which makes a sandbox and runs a command in it, and ends it."""
    from sandbox.backends.local.backend import LocalBackend

    backend = LocalBackend(folder)
    try:
        info = await backend.start()
    finally:
        await backend.close()
    return {"isolation": info.isolation, "detail": info.detail}


def main() -> int:
    """Prints what was found; exit code 1 if no sandbox could be made."""
    from servicekit.errors import HoneError

    with tempfile.TemporaryDirectory(prefix="hone-doctor-") as folder:
        try:
            found, code = asyncio.run(probe(Path(folder))), 0
        except (HoneError, OSError, ImportError) as error:
            found, code = {"error": str(error)}, 1
    print(json.dumps(found))
    return code


if __name__ == "__main__":
    sys.exit(main())
