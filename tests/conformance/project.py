"""Speaks to a server of a script project by the official client for Python: project.py own|example PROGRAM PROJECT

Of a project of our own the answers are known. Of another everything that is listed is asked for: a failure is an answer,
and what the client refuses to read is not.
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError


async def own(client: Client) -> None:
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert {"basics-echo", "basics-fail", "basics-sdk"} <= names, names
    for value in ("plain", "$(id) `id` \\ \" ' \n\té", ""):
        done = await client.call_tool("basics-echo", {"value": value})
        assert done.structured_content["value"] == value, done
    try:
        await client.call_tool("basics-fail", {"how": "fail"})
    except MCPError as error:
        assert error.error.code == -32602, error
    else:
        raise SystemExit("an error was a result")
    note = await client.read_resource("file://./resources/note.txt")
    assert note.contents[0].text == "A note\n", note
    got = await client.get_prompt("greeting", {"name": "Ada"})
    assert got.messages[0].content.text == "Hello, Ada!\n", got


async def example(client: Client) -> None:
    async def asked(what: str, answer) -> str:
        try:
            done = await answer
        except MCPError as error:
            return f"{what}: error {error.error.code} {error.error.message}"
        return f"{what}: isError" if getattr(done, "is_error", False) else f"{what}: well"

    lines = []
    for tool in (await client.list_tools()).tools:
        lines.append(await asked(tool.name, client.call_tool(tool.name, GIVEN.get(tool.name, {}))))
    for resource in (await client.list_resources()).resources:
        lines.append(await asked(resource.uri, client.read_resource(resource.uri)))
    for prompt in (await client.list_prompts()).prompts:
        given = {argument.name: "x" for argument in prompt.arguments or []}
        lines.append(await asked(prompt.name, client.get_prompt(prompt.name, given)))
    await client.list_resource_templates()
    print("\n".join(f"    {line}" for line in lines))


GIVEN = {
    "example-echo-arg": {"value": "x"},
    "example-roots-read": {"path": "./data/sample.txt"},
    "fetch-api-data": {"url": "https://api.example.org/"},
    "weather": {"location": "Oslo"},
    "system-info": {"command": "os"},
    "inspect_media": {"path": "media/example.mp4"},
}


async def main(kind: str, program: str, project: str) -> None:
    server = StdioServerParameters(
        command=program, args=["serve", "--toolchains", "none", "--project", project]
    )
    for mode in ("auto", "legacy"):
        async with Client(stdio_client(server), mode=mode) as client:
            await (own if kind == "own" else example)(client)
            print(f"python {mode}: {client.protocol_version}")


asyncio.run(main(*sys.argv[1:]))
