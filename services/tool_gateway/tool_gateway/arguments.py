"""Reads the arguments that a model wrote and checks them against a tool's schema; problems are texts for the model."""

import json
from collections.abc import Mapping

from jsonschema import Draft202012Validator

INVALID_JSON = "invalid_json"
INVALID_ARGUMENTS = "invalid_arguments"
MAX_JSON = 256 * 1024
"""Characters of arguments."""


class BadArguments(Exception):
    """Arguments that the tool must not see.

    Args:
        kind: invalid_json or invalid_arguments.
        text: what to tell the model.
    """

    def __init__(self, kind: str, text: str) -> None:
        """Keep both."""
        super().__init__(text)
        self.kind = kind
        self.text = text


class ArgumentReader:
    """Reads the arguments of one tool."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        """Compile the schema.

        Raises:
            jsonschema.SchemaError: the schema itself is wrong.
        """
        Draft202012Validator.check_schema(parameters)
        self._validator = Draft202012Validator(parameters)
        properties = parameters.get("properties")
        self._names = list(properties) if isinstance(properties, Mapping) else []

    def read(self, arguments_json: str) -> Mapping[str, object]:
        """Return the arguments.

        Raises:
            BadArguments: they are not JSON, or do not fit the schema.
        """
        values = self._load(arguments_json)
        problems = sorted(
            self._validator.iter_errors(values), key=lambda e: list(map(str, e.absolute_path))
        )
        if problems:
            listed = "; ".join(_describe(problem) for problem in problems[:3])
            raise BadArguments(
                INVALID_ARGUMENTS, f"Error: invalid arguments: {listed}. {self._hint()}"
            )
        assert isinstance(values, dict)
        return values

    def _load(self, arguments_json: str) -> object:
        if len(arguments_json) > MAX_JSON:
            raise BadArguments(
                INVALID_ARGUMENTS,
                f"Error: the arguments have {len(arguments_json)} characters; at most {MAX_JSON} are allowed.",
            )
        try:
            values = json.loads(arguments_json.strip() or "{}", parse_constant=_refuse_constant)
            # An escape such as \ud800 alone is JSON's grammar but no text: nothing could send it on.
            json.dumps(values, ensure_ascii=False).encode()
            return values
        except json.JSONDecodeError as err:
            where = f"{err.msg} at line {err.lineno} column {err.colno}"
        except UnicodeEncodeError as err:
            where = f"half a surrogate pair (\\u{ord(err.object[err.start]):04x}) is no character"
        except (ValueError, RecursionError) as err:
            where = str(err) or type(err).__name__
        raise BadArguments(
            INVALID_JSON, f"Error: the arguments are not valid JSON: {where}. {self._hint()}"
        )

    def _hint(self) -> str:
        example = ", ".join(f'"{name}": ...' for name in self._names)
        return f"Send one JSON object: {{{example}}}."


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _describe(problem: object) -> str:
    path = ".".join(map(str, getattr(problem, "absolute_path", ())))
    message = str(getattr(problem, "message", problem))
    message = message if len(message) <= 200 else f"{message[:197]}..."
    return f"{path}: {message}" if path else message
