"""Whose the files are that are made in a sandbox from outside."""

import os


def ids(uid: int, gid: int) -> tuple[int, int]:
    """Return what to give a file to: the user and group, for chown.

    An ordinary user's manager leaves the group as it is (-1): that is the one its sandboxes' root has, it may have
    another number than the user, and no other could be given.
    """
    return uid, gid if os.geteuid() == 0 else -1
