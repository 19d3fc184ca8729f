"""The rendezvous store: a process outside all workers, so that no worker's death can take it away.

Keys and bytes in memory. Requests are MessagePack lists behind a 4-byte length, answered in order of a connection:

    ["set", key, value] -> True                         ["delete", [key, ...]] -> number of keys deleted
    ["get", [key, ...]] -> [value, ...], once all keys are there          ["count"] -> number of keys
    ["check", [key, ...]] -> bool                       ["add", key, number] -> new number

Not `TCPStore`, for three measured reasons: its client asks the name server for the peer's name on every connect (5 s if
that is slow), its calls cannot be interrupted, and its server listens on every interface.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, NoReturn

from resihp_messages import MalformedMessage, pack, unpack
from resihp_messages.link import HEADER, payload_length

BACKLOG = 4096


class StoreData:
    """The content, and who waits for what is not there yet."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: dict[StoreConnection, list[str]] = {}

    def execute(self, request: list[Any], connection: StoreConnection) -> Any:
        """Answer of a request; `NotImplemented` if it must wait. Raises `MalformedMessage` for anything unknown."""
        match request:
            case ["set", str(key), bytes(value)]:
                self._set(key, value)
                return True
            case ["get", list(keys)]:
                if all(key in self._values for key in keys):
                    return [self._values[key] for key in keys]
                self._waiting[connection] = keys
                return NotImplemented
            case ["check", list(keys)]:
                return all(key in self._values for key in keys)
            case ["add", str(key), int(number)]:
                total = int(self._values.get(key, b"0")) + number
                self._set(key, str(total).encode())
                return total
            case ["delete", list(keys)]:
                return sum(self._values.pop(key, None) is not None for key in keys)
            case ["count"]:
                return len(self._values)
        raise MalformedMessage(f"unknown request {request!r:.80}")

    def forget(self, connection: StoreConnection) -> None:
        """The connection is gone."""
        self._waiting.pop(connection, None)

    def _set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for connection, keys in list(self._waiting.items()):
            if key in keys and all(k in self._values for k in keys):
                del self._waiting[connection]
                connection.answer([self._values[k] for k in keys])


class StoreConnection(asyncio.Protocol):
    """One client. A client that breaks the protocol is cut off."""

    def __init__(self, data: StoreData) -> None:
        self._data = data
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while len(self._buffer) >= HEADER.size:
                end = HEADER.size + payload_length(bytes(self._buffer[: HEADER.size]))
                if len(self._buffer) < end:
                    return
                raw = bytes(self._buffer[HEADER.size : end])
                del self._buffer[:end]
                answer = self._data.execute(unpack(raw), self)
                if answer is not NotImplemented:
                    self.answer(answer)
        except (MalformedMessage, TypeError):  # TypeError: a key that is not hashable
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._data.forget(self)

    def answer(self, value: Any) -> None:
        raw = pack(value)
        if self._transport is not None:
            self._transport.write(HEADER.pack(len(raw)) + raw)

    def _close(self) -> None:
        self._data.forget(self)
        if self._transport is not None:
            self._transport.close()


async def start_server(host: str) -> asyncio.Server:
    """A store that listens on `host`, on a port chosen by the kernel."""
    data = StoreData()
    return await asyncio.get_running_loop().create_server(lambda: StoreConnection(data), host, 0, backlog=BACKLOG)


async def _serve(host: str, report_fd: int) -> None:
    async with await start_server(host) as server:
        port = server.sockets[0].getsockname()[1]
        os.write(report_fd, f"{host}:{port}".encode())
        os.close(report_fd)
        await server.serve_forever()


def serve(host: str, report_fd: int) -> NoReturn:
    """Serve a store for ever; `host:port` is written to `report_fd` when it listens. OSError if it cannot."""
    asyncio.run(_serve(host, report_fd))
    raise AssertionError("the server runs until it is killed")
