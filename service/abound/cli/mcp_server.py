"""The MCP server of ``abound mcp``, with the tools that language models call: suggest, teach, explain, find labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from abound.client import AsyncClient, ClientError

INSTRUCTIONS = (
    "Abound suggests labels for a text and learns from corrections. Call suggest_labels before you choose labels. "
    "Call teach only with labels that a person confirmed; it changes later suggestions at once."
)

READS = ToolAnnotations(read_only_hint=True)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False)

Text = Annotated[str, Field(description="The text to label.")]
Count = Annotated[int, Field(ge=1, le=100, description="Maximum number of labels.")]
Vector = Annotated[
    list[float] | None,
    Field(description="An embedding of the instance, if the model learns from your vectors. Its text may be empty."),
]

Known = Annotated[
    list[str] | None,
    Field(description="Labels of the text that are chosen already: suggest others that go with them."),
]


class Suggestion(BaseModel):
    """A label with its score, its name if one is registered, and its probability if the model calibrates."""

    label: str
    score: float
    name: str | None = None
    probability: float | None = None


class Contribution(BaseModel):
    """The part of a score that comes from one feature of the text."""

    feature: str
    contribution: float


class Explanation(Suggestion):
    """A suggestion with the features that contributed to it. The contributions sum to the score."""

    because: list[Contribution]


class Taught(BaseModel):
    """The outcome of ``teach``: the offset in the log, and the rank of the best true label before, None if unranked."""

    offset: str
    rank: int | None


def make_server(client: AsyncClient, name: str) -> MCPServer:
    server: MCPServer = MCPServer("abound", instructions=INSTRUCTIONS, log_level="WARNING")
    model = client.model(name)

    @server.tool(annotations=READS)
    async def suggest_labels(text: Text, k: Count = 5, vector: Vector = None, known: Known = None) -> list[Suggestion]:
        """Suggest labels for a text, best first."""
        with _tool_errors():
            answer = await model.classify(text, vector=vector, k=k, names=True, known=known)
        return [
            Suggestion(label=one.label, score=one.score, name=one.name, probability=one.probability)
            for one in answer.labels
        ]

    @server.tool(annotations=ADDS)
    async def teach(
        text: Text,
        labels: Annotated[list[str], Field(min_length=1, description="Its true labels.")],
        vector: Vector = None,
        partial: Annotated[bool, Field(description="The labels are not all: others may be true, too.")] = False,
    ) -> Taught:
        """Learn the confirmed labels of a text. Later suggestions reflect it. Labels may be new."""
        with _tool_errors():
            learned = await model.learn(text, labels, vector=vector, source="mcp", partial=partial)
        return Taught(offset=learned.offset, rank=learned.rank)

    @server.tool(annotations=READS)
    async def explain(text: Text, k: Count = 3) -> list[Explanation]:
        """Show which words of a text contribute to the scores of its best labels."""
        with _tool_errors():
            answer = await model.classify(text, k=k, explain=True, names=True, version="live")
        return [
            Explanation(
                label=one.label,
                score=one.score,
                name=one.name,
                probability=one.probability,
                because=[
                    Contribution(feature=part.feature, contribution=part.contribution) for part in one.because or []
                ],
            )
            for one in answer.labels
        ]

    @server.tool(annotations=READS)
    async def find_label(
        part: Annotated[str, Field(min_length=1, description="Part of the name of a label.")], limit: Count = 20
    ) -> list[str]:
        """Find known labels whose name contains a string."""
        with _tool_errors():
            found = await client.labels(name, contains=part, limit=limit)
        return list(found["labels"])

    return server


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Raise ToolError for an error of the service: the language model gets its message."""
    try:
        yield
    except ClientError as error:
        raise ToolError(str(error)) from error
