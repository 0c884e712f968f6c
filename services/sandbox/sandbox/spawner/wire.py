"""Messages between the manager, the spawner and the keepers: one JSON object per packet, with file descriptors.

Both sides use a SOCK_SEQPACKET socket pair, so a packet is a message. A message that would not fit a packet travels
in a memfd. This file is imported by the spawner (no site-packages) and by the manager.
"""

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

INLINE_BYTES = 32 * 1024
"""Longer messages travel in a memfd; well below any socket buffer."""

MAX_DESCRIPTORS = 16
"""Most descriptors in one message."""

_MEMFD_MARK = b"memfd"


def send(sock: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message; the descriptors stay open on this side."""
    data = json.dumps(message).encode()
    if len(data) <= INLINE_BYTES:
        _send_packet(sock, data, descriptors)
        return
    memfd = os.memfd_create("hone-wire", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memfd), "wb") as body:
            body.write(data)
        _send_packet(sock, _MEMFD_MARK, [memfd, *descriptors])
    finally:
        os.close(memfd)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message with its descriptors, or None when the other side is gone."""
    try:
        data, ancillary, _, _ = sock.recvmsg(
            2 * INLINE_BYTES, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    received = list(descriptors)
    if not data:
        return None
    if data == _MEMFD_MARK:
        with os.fdopen(received.pop(0), "rb") as body:
            body.seek(0)
            data = body.read()
    message = json.loads(data)
    assert isinstance(message, dict)
    return message, received


def _send_packet(sock: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    if descriptors:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        sock.sendmsg([data], [rights])
    else:
        sock.send(data)
