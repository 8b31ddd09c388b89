"""YAML of tables and lists: short texts as JSON, which YAML reads, and texts of several lines as blocks."""

import json
import re
from collections.abc import Iterator
from typing import Any

_NOT_TEXT = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # to YAML 1.1, without quotes


def yaml(value: dict[str, Any]) -> str:
    """Write `value`. Its texts have printable characters, line feeds and tabs alone."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: dict[str, Any] | list[Any], indent: str) -> Iterator[str]:
    heads = [f"{_key(key)}:" for key in value] if isinstance(value, dict) else ["-"] * len(value)
    parts = value.values() if isinstance(value, dict) else value
    for head, part in zip(heads, parts, strict=True):
        if isinstance(part, dict | list) and part:
            lines = _lines(part, f"{indent}  ")
            yield f"{indent}- {next(lines).strip()}" if head == "-" else f"{indent}{head}"
            yield from lines
        elif isinstance(part, str) and _is_block(part):
            yield f"{indent}{head} |"
            yield from (f"{indent}  {line}" if line else "" for line in part[:-1].split("\n"))
        else:
            yield f"{indent}{head} {json.dumps(part, ensure_ascii=False)}"


def _is_block(text: str) -> bool:
    """Whether a block keeps `text`: it starts with no space, and ends in one line feed."""
    return bool(re.fullmatch(r"\S.*\S\n", text, re.DOTALL)) and "\n" in text[:-1]


def _key(key: str) -> str:
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", key) and key.lower() not in _NOT_TEXT
    return key if plain else json.dumps(key, ensure_ascii=False)
