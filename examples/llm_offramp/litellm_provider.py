"""The off-ramp as a custom provider of LiteLLM, which must be installed. See README.md for its configuration."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx
from litellm import CustomLLM
from litellm.llms.custom_llm import CustomLLMError

from abound import Model
from examples.llm_offramp.offramp import NONE, LanguageModel, Messages, answer, connect


class OffRamp(CustomLLM):  # type: ignore[misc]
    """Answers ``abound/MODEL``: the label of the last message of the user. The prompt goes to the language model."""

    def __init__(self) -> None:
        super().__init__()
        labels, key = os.environ["LLM_LABELS"].split(","), os.environ.get("LLM_KEY", "")
        self._llm = LanguageModel(os.environ["LLM_URL"], os.environ["LLM_MODEL"], labels, key)
        self._client = connect()

    def completion(
        self,
        model: str,
        messages: Messages,
        api_base: str,
        custom_prompt_dict: dict[str, Any],
        model_response: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fill ``model_response``. LiteLLM passes more, such as ``optional_params`` and ``timeout``."""
        text = next((one["content"] for one in reversed(messages) if one["role"] == "user"), None)
        if not isinstance(text, str):
            raise CustomLLMError(status_code=400, message="the last message of the user must be a text")
        try:
            found = answer(Model(self._client, model), self._llm, text, messages)
        except httpx.TimeoutException as error:
            raise CustomLLMError(status_code=504, message=str(error)) from error
        except (httpx.HTTPError, ValueError) as error:
            raise CustomLLMError(status_code=502, message=str(error)) from error
        model_response.model = f"{found.by}/{model}"
        model_response.choices[0].message.content = ", ".join(found.labels) or NONE
        return model_response

    async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``completion``, which has the same parameters, in a thread."""
        return await asyncio.to_thread(self.completion, *args, **kwargs)


handler = OffRamp()
