"""The rendezvous store: a process outside all workers, so that no worker's death can take it away."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from typing import NoReturn

from torch._C._distributed_c10d import TCPStore  # typed here; `torch.distributed` re-exports it

BACKLOG = 4096


def serve(host: str, report_fd: int) -> NoReturn:
    """Serve a store on `host` and a port chosen by the kernel; write `host:port` to `report_fd`, then serve for ever.

    The listening socket is ours: `TCPStore` alone would listen on every interface, without authentication.
    """
    listener = socket.create_server((host, 0), backlog=BACKLOG)
    port = listener.getsockname()[1]
    server = TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=30),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    os.write(report_fd, f"{host}:{server.port}".encode())
    os.close(report_fd)
    while True:
        signal.pause()
