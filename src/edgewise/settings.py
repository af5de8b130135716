"""What all settings have in common, whether they come from a file, a flag or the environment."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class Settings(BaseModel):
    """Validated once, then frozen; an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _none(cls, values: Any) -> Any:
        """TOML and flags have no null: the word none stands for it."""
        if not isinstance(values, dict):
            return values
        return {name: None if value == "none" else value for name, value in values.items()}


def describe_mistakes(error: ValidationError) -> str:
    """Describe the first mistake."""
    mistake = error.errors()[0]
    name = ".".join(map(str, mistake["loc"]))
    message = mistake["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message
