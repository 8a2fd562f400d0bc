"""``abound mcp``: a server of the Model Context Protocol (MCP) over standard input and output."""

from __future__ import annotations

from abound.cli.file_arguments import CommandFailed
from abound.cli.options import DEFAULT_URL, Key, Model, Url


def mcp(url: Url = DEFAULT_URL, key: Key = None, model: Model = "default") -> None:
    """Run an MCP server over standard input and output: a language model uses a model as tools. Needs `abound[mcp]`."""
    from abound.client import AsyncClient

    try:
        from abound.cli.mcp_server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise CommandFailed("the MCP SDK is not installed; install it: pip install 'abound[mcp]'") from error
    make_server(AsyncClient(url, key=key), model).run()
