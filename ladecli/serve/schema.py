"""The request bodies of OpenAI's completions, as far as they are supported.

Unknown fields are ignored, but fields that would change the meaning of an answer are refused.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from fastapi import HTTPException
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from ..session.conversation import OpenAIMessage, TextPart, as_parts

PROMPTS = 100
"""The most prompts of a request."""
STOPS = 16
"""The most stop strings of a request; every token is checked against all of them."""
STOP_LENGTH = 1000
"""The most characters of a stop string."""
TOP_LOGPROBS = 20
"""The most tokens per position with log-probabilities."""
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    "functions": ([],),
    "function_call": ("none", "auto"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (0,)),
    **dict.fromkeys(("audio", "web_search_options"), ()),
    # llama.cpp's and vLLM's constraints of answers.
    **dict.fromkeys(("grammar", "json_schema", "structured_outputs"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("echo", "continue_final_message"), (False,)),
    "logit_bias": ({},),
    "modalities": (["text"],),
}
"""Unsupported fields, with the values that are accepted because they change nothing."""


class APIError(HTTPException):
    """An error response to a request.

    Args:
        status: of HTTP.
        message: one line: the fault and the fix.
        param: the name of the invalid field.
        code: the error code for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code


_LEVELS = {"minimal": "low", "xhigh": "high"}
"""OpenAI's other reasoning efforts, with our names for them."""


def _one_or_more(value: Any) -> Any:
    """Return a single text, or a single list of token ids, as a list of one."""
    is_ids = isinstance(value, list) and [*map(type, value[:1])] == [int]
    return [value] if is_ids or isinstance(value, str) else value


_Token = Annotated[int, Field(ge=0)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=STOP_LENGTH)]
_Stops = Annotated[list[_Text], BeforeValidator(_one_or_more), Field(max_length=STOPS)]
_Body = TypeVar("_Body", bound="_AnswerBody")


def _tools(value: Any) -> Any:
    """Return the tools after checking them."""
    for number, tool in enumerate(value if isinstance(value, list) else ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise ValueError(f"{number}: only tools of the type function are known here")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError(f"{number}: its function has no name")
        if not isinstance(function.get("parameters") or {}, dict):
            raise ValueError(f"{number}: the parameters of {function['name']} are not a schema")
    return value


class RequestObject(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(strict=True, protected_namespaces=())


class Prediction(RequestObject):
    """A text that the answer may repeat."""

    content: Annotated[list[TextPart], BeforeValidator(as_parts)]

    @property
    def text(self) -> str:
        """All of its parts."""
        return "".join(part.text for part in self.content)


class SchemaFormat(RequestObject):
    """The JSON schema of a response format."""

    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(RequestObject):
    """The format of an answer: a text, any JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @property
    def schema_of_answers(self) -> dict[str, Any] | None:
        """The schema of answers; None for texts."""
        if self.type == "text":
            return None
        return {"type": "object"} if self.json_schema is None else self.json_schema.json_schema

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema: it is missing")
        return self


class _AnswerBody(RequestObject):
    """The fields that all requests have; None stands for the server's own setting."""

    model_config = ConfigDict(extra="allow")

    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    # 0 and -1 mean no limit, as in LM Studio and llama.cpp
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = None  # its newer name
    stop: _Stops | None = None
    temperature: _Number | None = None
    top_p: _Number | None = None
    top_k: int | None = None
    min_p: _Number | None = None
    repetition_penalty: _Number | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    prediction: Prediction | None = None

    def as_completion(self: _Body) -> _Body:
        """Return the request as one of OpenAI's completions."""
        return self

    def per_prompt(self: _Body) -> list[_Body]:
        """Return a request for each answer."""
        return [self]

    def check(self) -> None:
        """Raise a APIError if a field is unsupported or contradicts another."""
        for name, others in _ONLY.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in others:
                only = f"only {json.dumps(others[0])} is" if others else "it is not"
                raise APIError(400, f"{name}: {only} supported here; leave it out", name)
        self.__pydantic_extra__ = None  # frees unknown fields, which may be large

    @property
    def callable(self) -> list[dict[str, Any]]:
        """The tools that the answer may call."""
        return []

    @property
    def schema_of_answers(self) -> dict[str, Any] | None:
        """The JSON schema that the answer fits; None for any text."""
        return None

    @property
    def alternatives(self) -> int | None:
        """The number of tokens per position with log-probabilities; None without any."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """The server's options that this request overrides, by key."""
        names = ("stop", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
        values = {name: getattr(self, name) for name in (*names, "ignore_eos")}
        limit = self.max_completion_tokens or self.max_tokens or 0
        values["max_new_tokens"] = limit if limit > 0 else None
        if self.top_k == -1:  # vLLM's value for all tokens
            values["top_k"] = 0
        return {key: value for key, value in values.items() if value is not None}


class ChatBody(_AnswerBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[OpenAIMessage], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "low", "medium", "high", "minimal", "xhigh"] | None = None
    tools: Annotated[list[dict[str, Any]] | None, BeforeValidator(_tools)] = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def effort(self) -> str | None:
        """The reasoning effort by our name."""
        effort = self.reasoning_effort
        return effort and _LEVELS.get(effort, effort)

    @property
    def callable(self) -> list[dict[str, Any]]:
        """See `_AnswerBody`."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def schema_of_answers(self) -> dict[str, Any] | None:
        """See `_AnswerBody`."""
        text_schema = self.response_format and self.response_format.schema_of_answers
        must_call = bool(self.callable) and self.tool_choice not in (None, "auto")
        if not must_call and not text_schema:
            return None
        named = self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None
        schemas = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["function"]["name"]},
                    # The id keeps the references within the schema valid.
                    "arguments": (tool["function"].get("parameters") or {"type": "object"})
                    | {"$id": f"lade:{number}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, tool in enumerate(self.callable)
            if named in (None, tool["function"]["name"])
        ]
        schemas += [text_schema | {"$id": "lade:answer"}] if text_schema and not must_call else []
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def check(self) -> None:
        """See `_AnswerBody`."""
        super().check()
        if isinstance(choice := self.tool_choice, dict):
            names = [tool["function"]["name"] for tool in self.tools or ()]
            function = choice.get("function")
            if not isinstance(function, dict) or function.get("name") not in names:
                raise APIError(400, "tool_choice: it names none of the tools", "tool_choice")
        if self.top_logprobs and not self.logprobs:
            raise APIError(400, 'top_logprobs: it needs "logprobs": true', "top_logprobs")

    @property
    def alternatives(self) -> int | None:
        """See `_AnswerBody`."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TextBody(_AnswerBody):
    """The body of /v1/completions."""

    prompts: Annotated[
        list[str | list[_Token]],
        BeforeValidator(_one_or_more),
        Field(alias="prompt", min_length=1, max_length=PROMPTS),
    ]
    suffix: str | None = None  # the text after the answer, for fill-in-the-middle
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None

    def per_prompt(self) -> list[TextBody]:
        """Return a request for each prompt."""
        return [self.model_copy(update={"prompts": [prompt]}) for prompt in self.prompts]

    def check(self) -> None:
        """See `_AnswerBody`."""
        super().check()
        if self.stream and len(self.prompts) > 1:
            raise APIError(400, "stream: it takes one prompt; leave it out for several", "stream")
        if self.suffix and any(isinstance(prompt, list) for prompt in self.prompts):
            raise APIError(400, "suffix: the prompt before it must be a text", "suffix")

    @property
    def alternatives(self) -> int | None:
        """See `_AnswerBody`."""
        return self.logprobs


CompletionBody: TypeAlias = ChatBody | TextBody
"""The body of a request."""
