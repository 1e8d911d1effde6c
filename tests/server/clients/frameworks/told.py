"""Texts and models of data that every framework's test tells the server."""

import pydantic

MODEL = "tessera-tiny"
QUESTION = "Tell me a story about a dog."
CHAT = [{"role": "user", "content": QUESTION}]
TEXTS = ["The sky is blue.", "Rain falls."]


class Dog(pydantic.BaseModel):
    """A dog."""

    model_config = pydantic.ConfigDict(extra="forbid")
    age: int = pydantic.Field(ge=0, le=20)
    good: bool


class Sum(pydantic.BaseModel):
    """Adds two numbers."""

    model_config = pydantic.ConfigDict(extra="forbid")
    a: int = pydantic.Field(ge=0, le=99)
    b: int = pydantic.Field(ge=0, le=99)
