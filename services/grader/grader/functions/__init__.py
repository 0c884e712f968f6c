"""Reward functions of installed packages, run in processes of their own that are killed at their time limit."""
