"""Programs that a process with gRPC starts: none may end before it has begun."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, servicekit, grpc, uvloop

async def echo(request, context):
    return request

async def main():
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    call = grpc.aio.insecure_channel(f"127.0.0.1:{port}").unary_unary("/t.T/Echo")

    async def talk():
        while True:
            await call(b"x")

    talking = asyncio.create_task(talk())
    ends = set()
    for _ in range(100):
        process = await asyncio.create_subprocess_exec("true")
        ends.add(await process.wait())
    talking.cancel()
    await server.stop(None)
    print(ends)

uvloop.run(main())
"""


def test_programs_started_while_calls_go_on_begin_without_grpcs_fork_handlers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "{0}\n"
    assert "fork" not in done.stderr
