"""Clients of the service: ``Client`` for threads, ``AsyncClient`` for asyncio.

Both have a method for each resource, and take and return JSON documents as dictionaries. ``Model`` and ``AsyncModel``
give access to one model with typed instances and answers, which suits most applications::

    with Client("http://127.0.0.1:8000") as client:
        model = client.model("default")
        model.learn("wheat prices rise", ["grain"])
        for label in model.classify("the price of wheat").labels:
            print(label.label, label.score)
"""

from abound.client.async_client import AsyncClient, AsyncModel
from abound.client.errors import ClientError, Interrupted, Refused, Unreachable, refusal_of
from abound.client.instances import InputInstance, Labelled
from abound.client.retries import ATTEMPTS, MAX_PAUSE
from abound.client.streams import STREAM_BYTES, STREAM_LINES, bounded
from abound.client.sync_client import Client, Model

__all__ = [
    "ATTEMPTS",
    "MAX_PAUSE",
    "STREAM_BYTES",
    "STREAM_LINES",
    "AsyncClient",
    "AsyncModel",
    "Client",
    "ClientError",
    "InputInstance",
    "Interrupted",
    "Labelled",
    "Model",
    "Refused",
    "Unreachable",
    "bounded",
    "refusal_of",
]
