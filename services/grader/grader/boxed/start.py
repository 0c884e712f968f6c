"""How a program of this folder is started: its modules come with the job, none from the box's disk.

What lies on the disk may have been written by the code under test of an earlier process; what is in the job was not.
"""

from __future__ import annotations

BOOT = """
import json, sys, types
with open(int(sys.argv[1]), "rb", closefd=False, buffering=0) as file:
    size = int.from_bytes(file.read(4), "big")
    data = b""
    while len(data) < size:
        data += file.read(size - len(data))
job = json.loads(data)
for name, text in job["modules"].items():
    module = types.ModuleType(name)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules[job["main"]].main(job)
"""
"""Run by `python3 -c BOOT DESCRIPTOR`: reads one frame, the job, from the descriptor; parents come before children."""
