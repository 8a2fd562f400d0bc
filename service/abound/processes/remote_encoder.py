"""Encoders behind a URL: endpoints with the embeddings API of OpenAI, which make the vectors of texts.

No request chooses the URL. It is part of a model's configuration, and its host must be in ``encoder_hosts``. The key
of the endpoints is a setting, and is in no error or log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from abound.settings import Settings
from abound_core.config import AnalyzerConfig, EncoderUrl
from abound_core.errors import EncoderUnavailable, InvalidInstance
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.dense_vector import quantize
from abound_core.instances.encoded_vector import Numbers, VectorOfText
from abound_core.instances.text_encoder import MAX_CHARACTERS, text_to_encode
from abound_core.limits import MAX_DIMENSION

TEXTS_AT_ONCE = 32  # in one call, whose answer is decoded in some milliseconds
MAX_ANSWER_BYTES = 8 * 2**20  # of a call; numbers take about 20 bytes each
CALLS_AT_ONCE = 8  # of a process; others wait, within the time limit


class _Embedding(msgspec.Struct):
    index: int
    embedding: Numbers


class _Answer(msgspec.Struct):
    data: list[_Embedding]


class RemoteEncoder:
    """Asks endpoints for vectors, and keeps its connections to them until ``close``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hosts = {host.strip().lower() for host in settings.encoder_hosts.split(",")}
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._http: Any = None

    async def dimension(self, encoder: EncoderUrl) -> int:
        """Ask for the dimension. Raises EncoderUnavailable, and InvalidInstance if the host is not allowed."""
        if not self._allows(encoder):
            field = "analyzer.embed.url"
            raise InvalidInstance(f"{field}: the host {encoder.authority} is not in ABOUND_ENCODER_HOSTS", field)
        [numbers] = await self._call(replace(encoder, dimension=None), ["dimension"])
        return len(numbers)

    async def encode(self, analyzer: AnalyzerConfig, instances: Sequence[Any]) -> None:
        """Set the vector of each instance with a text and no vector, if the encoder is behind a URL.

        Raises EncoderUnavailable; the instances of the calls before have their vectors then.
        """
        encoder = analyzer.embed
        if not isinstance(encoder, EncoderUrl):
            return
        waiting = [one for one in instances if one.text is not None and one.vector is None]
        while some := waiting[:TEXTS_AT_ONCE]:
            del waiting[:TEXTS_AT_ONCE]
            read = map(partial(text_to_encode, config=analyzer), [one.text for one in some])
            texts = [text[:MAX_CHARACTERS] for text in await asyncio.to_thread(list, read)]
            asked = [text for text in texts if text.strip()]  # endpoints refuse an empty one
            vectors = iter(await self._call(encoder, asked) if asked else ())
            for one, text in zip(some, texts, strict=True):
                numbers = np.array(next(vectors) if text.strip() else ())
                dense = quantize(numbers) if numbers.any() else b""
                msgspec.structs.force_setattr(one, "vector", VectorOfText(analyzer, dense))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def _allows(self, encoder: EncoderUrl) -> bool:
        return not self._hosts.isdisjoint((encoder.authority, encoder.authority.rpartition(":")[0]))

    async def _call(self, encoder: EncoderUrl, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts. Raises EncoderUnavailable, whose message has nothing that was answered."""
        import httpx  # a service without such an encoder starts without it

        if self._http is None:
            for name in ("httpx", "httpcore"):  # they log every request
                logging.getLogger(name).setLevel(logging.WARNING)
            # Without the proxies of the environment, which would decide where a request goes.
            certificates, timeout = httpx.create_ssl_context(), httpx.Timeout(None)
            self._http = httpx.AsyncClient(timeout=timeout, trust_env=False, verify=certificates)
        key, limit = self._settings.encoder_key, self._settings.encoder_seconds
        headers = {"authorization": f"Bearer {key.get_secret_value()}".encode()} if key is not None else {}
        try:
            if not self._allows(encoder):
                raise ValueError("is not in ABOUND_ENCODER_HOSTS")
            async with asyncio.timeout(limit), self._slots:
                asked = {"model": encoder.model, "input": texts}
                sending = self._http.stream("POST", encoder.url, json=asked, headers=headers, follow_redirects=False)
                async with sending as answer:
                    if answer.status_code != 200:
                        raise ValueError(f"has answered with status {answer.status_code}; check url, model and key")
                    body = bytearray()
                    async for part in answer.aiter_bytes():
                        body += part
                        if len(body) > MAX_ANSWER_BYTES:
                            raise ValueError(f"has answered with more than {MAX_ANSWER_BYTES} bytes")
            return _vectors(bytes(body), encoder, len(texts))
        except TimeoutError:
            why = f"has not answered in {limit:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"cannot be reached, or has closed the connection ({type(error).__name__})"
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            why = f"has not answered with vectors of 1 to {MAX_DIMENSION} numbers"
        except ValueError as error:
            why = str(error)
        raise EncoderUnavailable(f"the encoder at {encoder.authority} {why}; nothing was learned, try again")


def _vectors(answer: bytes, encoder: EncoderUrl, n: int) -> list[list[float]]:
    """Return the vectors of an answer in the order of the texts. Raises ValueError if they are not as asked."""
    found = sorted(msgspec.json.decode(answer, type=_Answer).data, key=lambda one: one.index)
    if [one.index for one in found] != list(range(n)):
        raise ValueError(f"has not answered with one vector for each of {n} texts")
    d = encoder.dimension or len(found[0].embedding)
    for one in found:
        if len(one.embedding) != d:
            raise ValueError(f"has answered with {len(one.embedding)} numbers in place of {d}")
    return [one.embedding for one in found]


def encoded(instances: Iterable[DatasetInstance], analyzer: AnalyzerConfig) -> Iterator[DatasetInstance]:
    """Yield instances, with the vectors of their texts if the encoder is behind a URL. Raises EncoderUnavailable."""
    if not isinstance(analyzer.embed, EncoderUrl):
        yield from instances
        return
    coming = iter(instances)
    with asyncio.Runner() as runner:
        remote = RemoteEncoder(Settings.load())
        while some := [msgspec.structs.replace(one) for one in islice(coming, TEXTS_AT_ONCE)]:
            runner.run(remote.encode(analyzer, some))
            yield from some
        runner.run(remote.close())
