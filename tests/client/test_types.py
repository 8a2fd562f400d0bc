"""The types of the client, as mypy finds them in programs of those who have installed it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from abound.api.schemas.learn_classify import ClassifyRequest
from abound.client.instances import ClassifyOptions, InputInstance, Labelled, LearnKwargs

ROOT = Path(__file__).parents[2]

PROGRAM = """
from abound import Client, Labelled, Model
from abound.client import AsyncClient, AsyncModel

client = Client("http://127.0.0.1:8000")
model = Model(client)
client.labels("m", prefix="a", limit=3)
client.labels("m", prefx="a")  # error: prefx
client.jobs(sate="running")  # error: sate
reveal_type(client.stats("m"))  # dict[str, Any]
reveal_type(client.export("m"))  # Iterator[bytes]
reveal_type(client.delete("m"))  # None
reveal_type(model.learn("b", ["a"], key="c", source="d", features={"e": 1.0}, prediction=None))  # LearnAnswer
reveal_type(model.classify(text="b", k=3, explain=True).labels[0].score)  # float
model.learn("b", ["a"], srce="b")  # error: srce
model.learn(3, ["a"])  # error: int
model.classify(kk=3)  # error: kk
for answer in model.learn_many([Labelled(text="a", labels=["b"])]):
    reveal_type(answer)  # LearnAnswer | abound.client.errors.Refused
model.learn_many([("a", ["b"])])  # error: tuple
model.classify_many(["a", {"text": "b"}], k=3)
model.classify_many([], thresh=0.5)  # error: thresh


async def main(model: AsyncModel, client: AsyncClient) -> None:
    reveal_type(await client.stats("m"))  # dict[str, Any]
    reveal_type(client.export("m"))  # AsyncIterator[bytes]
    reveal_type(client.delete)  # Coroutine[Any, Any, None]
    client.learn("m", {})  # error: coroutine
    await client.import_("m", [b""])  # error: AsyncIterable[bytes]
    reveal_type((await model.learn("b", ["a"])).offset)  # str
    await model.learn("b", ["a"], srce="b")  # error: srce
    await model.classify(text="b", kk=3)  # error: kk
"""


def test_every_field_has_a_name() -> None:
    instance = set(InputInstance.__struct_fields__)
    assert set(ClassifyOptions.__annotations__) == set(ClassifyRequest.__struct_fields__) - instance - {"instances"}
    assert set(LearnKwargs.__annotations__) == set(Labelled.__struct_fields__) - instance - {"labels"}


@pytest.mark.long
def test_mypy_finds_what_is_wrong_in_the_program_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, *["-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "program.py"]]
    environment = os.environ | {"MYPYPATH": f"{ROOT}/core:{ROOT}/service"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said: dict[int, str] = {}
    for place, what in re.findall(r"^program\.py:(\d+): (.*)$", done.stdout, re.MULTILINE):
        said[int(place)] = said.get(int(place), "") + what
    expected = {
        number: line.split("# ")[1] for number, line in enumerate(PROGRAM.splitlines(), start=1) if "# " in line
    }
    assert said.keys() == expected.keys(), done.stdout + done.stderr
    for number, words in expected.items():
        assert re.search(rf"(?<!\w){re.escape(words.removeprefix('error: '))}(?!\w)", said[number]), said[number]
        assert said[number].startswith("error") == words.startswith("error")
