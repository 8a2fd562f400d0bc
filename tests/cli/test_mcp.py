"""``abound mcp``, used by the client of the MCP SDK."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from abound.cli.mcp_server import make_server
from abound.client import AsyncClient
from tests.support.served import Served, fresh_model, make_key, served


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert result.structured_content is not None
    return result.structured_content.get("result", result.structured_content)


async def test_a_language_model_teaches_and_asks(service: Served) -> None:
    name = fresh_model(service, update="sls")
    async with AsyncClient(service.url) as abound, Client(make_server(abound, name)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {
            "suggest_labels", "teach", "explain", "find_label",
        }  # fmt: skip
        assert await call(client, "suggest_labels", text="wheat") == []
        taught = await call(client, "teach", text="wheat prices rise", labels=["grain", "cereal"])
        assert taught["rank"] is None
        [best, other] = await call(client, "suggest_labels", text="wheat")
        assert {best["label"], other["label"]} == {"grain", "cereal"}
        [other] = await call(client, "suggest_labels", text="wheat", known=["grain"])
        assert other["label"] == "cereal"
        assert len(await call(client, "suggest_labels", text="wheat", k=1)) == 1
        [explained] = await call(client, "explain", text="wheat and corn", k=1)
        assert [part["feature"] for part in explained["because"]] == ["wheat"]
        assert sum(part["contribution"] for part in explained["because"]) == pytest.approx(explained["score"])
        assert await call(client, "find_label", part="rai") == ["grain"]
        assert service.learned(name) == 1


async def failure(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return str(result.content)


async def test_the_language_model_gets_errors_of_the_service(service: Served) -> None:
    async with AsyncClient(service.url) as abound, Client(make_server(abound, "missing")) as client:
        assert "there is no model 'missing'" in await failure(client, "suggest_labels", text="wheat")
        assert "labels" in await failure(client, "teach", text="wheat", labels=[])


async def test_a_service_that_does_not_answer_is_reported() -> None:
    async with AsyncClient("http://127.0.0.1:9") as abound, Client(make_server(abound, "default")) as client:
        for tool, arguments in [("suggest_labels", {}), ("explain", {}), ("teach", {"labels": ["grain"]})]:
            assert "start one with: abound serve" in await failure(client, tool, text="wheat", **arguments)
        assert "start one with: abound serve" in await failure(client, "find_label", part="grain")


def command(service: Served, directory: Path, **environment: str) -> StdioServerParameters:
    """The server as a program, without other settings of this environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "abound", "mcp", "--model", "default"],
        env=inherited | {"ABOUND_URL": service.url} | environment,
        cwd=directory,
    )


async def test_the_command_serves_over_standard_input_and_output_with_a_key(tmp_path: Path) -> None:
    with served() as service:
        made = await asyncio.to_thread(make_key, service, "learn", "classify")
        async with Client(command(service, tmp_path, ABOUND_KEY=made.secret)) as client:
            await call(client, "teach", text="wheat prices rise", labels=["grain"])
            assert await call(client, "find_label", part="gr") == ["grain"]
        async with Client(command(service, tmp_path)) as client:
            assert "401" in await failure(client, "suggest_labels", text="wheat")
            assert "401" in await failure(client, "teach", text="wheat", labels=["grain"])


def test_without_the_sdk_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['mcp'] = None; from abound.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "mcp"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "abound: the MCP SDK is not installed; install it: pip install 'abound[mcp]'\n"
