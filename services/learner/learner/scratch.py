"""Where this process and those that it starts put temporary files: beside its data, which has room for whole models.

What a process leaves that was killed, nothing would ever remove from the system's folder for temporary files.
"""

import os
import shutil
import tempfile
from pathlib import Path


def use_scratch(root: Path) -> None:
    """Makes a folder below `root` the one for temporary files, and removes those of processes that are gone."""
    root.mkdir(parents=True, exist_ok=True)
    mine = root.absolute() / str(os.getpid())
    for folder in root.iterdir():
        if folder.name.isdecimal() and (folder.name == mine.name or not _lives(int(folder.name))):
            shutil.rmtree(folder, ignore_errors=True)
    mine.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(mine)


def _lives(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Another user's.
        pass
    return True
