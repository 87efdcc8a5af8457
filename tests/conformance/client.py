"""Speaks to a server by the official client for Python: client.py URL TOKEN auto|legacy"""

import asyncio
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(url: str, token: str, mode: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"bash", "calculate"} <= names, names
            for number in range(3):
                done = await client.call_tool("bash", {"command": f"x=$((x+1)); echo $x-{number}"})
                assert not done.is_error, done
                assert done.structured_content["stdout"] == f"{number + 1}-{number}\n", done
            sums = [client.call_tool("calculate", {"expression": f"{n}*7"}) for n in range(20)]
            for number, done in enumerate(await asyncio.gather(*sums)):
                assert done.structured_content["result"] == str(number * 7), done
            bad = await client.call_tool("bash", {"comand": "true"})
            assert bad.is_error, bad
            print(f"python {mode}: {client.protocol_version}")
    try:
        async with Client(url, mode=mode) as client:
            await client.list_tools()
    except BaseException:
        return
    raise SystemExit("a client without a token was served")


asyncio.run(main(*sys.argv[1:]))
