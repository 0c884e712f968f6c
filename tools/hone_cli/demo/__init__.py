"""The main job: trains a real agent on this machine and shows what it learned (`make demo`, `make proof`)."""
