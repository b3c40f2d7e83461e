"""A WebSocket that repeats what it is told, and a client that tells it: `websocket_echo.py serve PORT`, `websocket_echo.py ask URL TOKEN`.
The client prints `ok` when all of it was as it should be.
"""

import asyncio
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus


async def echo(socket):
    async for message in socket:
        if message == "leave":
            await socket.close(4001, "as you wish")
            return
        await socket.send(message)


async def run_server(port):
    async with serve(echo, "127.0.0.1", port, max_size=None) as server:
        await server.serve_forever()


async def ask(url, token):
    headers = {"authorization": f"Bearer {token}"}
    async with connect(url, additional_headers=headers, max_size=None) as socket:
        large = bytes(range(256)) * 16384
        for message in ["hello", "", large, "grüße"]:
            await socket.send(message)
            assert await socket.recv() == message
        await asyncio.wait_for(await socket.ping(), 10)
        await socket.send("leave")
        try:
            await socket.recv()
            raise AssertionError("it was to leave")
        except ConnectionClosedError as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "as you wish"), closed
    try:
        await connect(url)
        raise AssertionError("nobody gets in without a token")
    except InvalidStatus as refused:
        assert refused.response.status_code == 403, refused
    print("ok")


if sys.argv[1] == "serve":
    asyncio.run(run_server(int(sys.argv[2])))
else:
    asyncio.run(ask(sys.argv[2], sys.argv[3]))
