"""Starts a rollout replica: `python -m rollout`."""

import os

from rollout.build import build
from rollout.settings import RolloutSettings
from servicekit.serve import run

if __name__ == "__main__":
    # OpenMP's threads spin by default, which starves everything else on the machine, and the other
    # half of their own team with it, as soon as cores are shared. Read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    run("rollout", RolloutSettings, build)
