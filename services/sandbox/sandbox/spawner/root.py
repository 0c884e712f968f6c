"""Builds a sandbox's root file system and makes it the root.

The writable part is a tmpfs of bounded size and number of files. It is either the root itself, filled with a synthetic
layout over read-only binds, or the upper layer over an imported base. In both cases `/proc`, `/dev/shm` and `/dev/pts`
are the sandbox's own and `/dev` is a read-only folder that the spawner made.
"""

import os
import stat
from collections.abc import Mapping
from typing import Any

from sandbox.spawner import syscalls

_MAX_TERMINALS = 64
"""Of one sandbox; all that there are may have 4096, the host's included (kernel.pty.max)."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def enter_root(spec: Mapping[str, Any], id_map: int) -> int:
    """Build the root, pivot into it, and return a descriptor of the directory that holds what is written.

    `id_map` is a user namespace that makes the owner of an imported base the sandbox's own root, or negative.
    """
    uid = int(spec["uid"])
    owner = f"uid={uid},gid={uid}"
    limits = f"size={spec['disk_bytes']},nr_inodes={spec['max_inodes']}"
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", spec["root_dir"], "tmpfs", flags, f"mode=755,{owner},{limits}")
    os.chdir(spec["root_dir"])
    if spec["base"]:
        writable = _lay_over(spec["base"], uid, bool(spec["rootless"]), id_map)
    else:
        _fill(spec, uid)
        writable = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    _add_devices(spec["dev_dir"], owner, int(spec["shm_bytes"]))
    syscalls.mount("proc", "proc", "proc", flags | syscalls.MS_NOEXEC)
    syscalls.pivot_root_here()
    return writable


def _lay_over(base: str, uid: int, rootless: bool, id_map: int) -> int:
    """Mount an overlay of an imported base under a new upper layer, and go there."""
    syscalls.set_fs_ids(uid, uid)
    os.mkdir("upper", 0o755)
    os.mkdir("work", 0o755)
    os.mkdir("root", 0o755)
    syscalls.set_fs_ids(0, 0)
    writable = os.open("upper", os.O_RDONLY | os.O_DIRECTORY)
    if id_map >= 0:
        os.mkdir("base", 0o755)
        syscalls.bind_read_only(base, "base", user_namespace=id_map)
        base = "base"
    # By its descriptor, because a path may hold what means something among mount options.
    lower = os.open(base, os.O_PATH | os.O_DIRECTORY)
    options = f"lowerdir=/proc/self/fd/{lower},upperdir=upper,workdir=work,xino=on"
    # The upper layer is saved and restored on its own (snapshots), so it must not refer to the base. An ordinary
    # user's (trusted.* attributes are not theirs to write) cannot, and the kernel refuses to be told so.
    options += ",userxattr" if rootless else ",redirect_dir=off,metacopy=off"
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("overlay", "root", "overlay", flags, options)
    os.close(lower)
    os.chdir("root")
    return writable


def _fill(spec: Mapping[str, Any], uid: int) -> None:
    syscalls.set_fs_ids(uid, uid)
    os.umask(0)
    for path, mode in spec["directories"]:
        os.mkdir(path, mode)
    for path, mode, text in spec["files"]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    for path, target in spec["symlinks"]:
        os.symlink(target, path)
    for _, path, is_directory in spec["binds"]:
        if is_directory:
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    os.umask(0o022)
    syscalls.set_fs_ids(0, 0)
    for source, path, _ in spec["binds"]:
        syscalls.bind_read_only(source, path)


def prepare_devices(folder: str) -> None:
    """Make the /dev that all sandboxes share, read-only, in the spawner's own mount namespace."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", folder, "tmpfs", flags, "mode=755,size=65536,nr_inodes=64")
    for name in _DEVICES:
        host, own = f"/dev/{name}", f"{folder}/{name}"
        try:
            os.mknod(own, stat.S_IFCHR, os.stat(host).st_rdev)
        except (
            PermissionError
        ):  # an ordinary user, or a container, may not make one: the host's is bound
            os.close(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600))
            syscalls.mount(host, own, None, syscalls.MS_BIND)
        else:
            os.chmod(own, 0o666)
    for directory in ("pts", "shm"):
        os.mkdir(f"{folder}/{directory}")
    os.symlink("pts/ptmx", f"{folder}/ptmx")
    os.symlink("/proc/self/fd", f"{folder}/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")


def _add_devices(folder: str, owner: str, shm_bytes: int) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.bind_read_only(folder, "dev", devices=True)
    pts = f"newinstance,ptmxmode=0666,mode=620,max={_MAX_TERMINALS}"
    syscalls.mount("devpts", "dev/pts", "devpts", flags, pts)
    shm = f"mode=1777,size={shm_bytes},nr_inodes=4096,{owner}"
    syscalls.mount("tmpfs", "dev/shm", "tmpfs", flags | syscalls.MS_NODEV, shm)
