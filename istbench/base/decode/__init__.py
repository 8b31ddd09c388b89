"""Read all data from outside, check its bounds and decode it into a type, once."""

from istbench.base.decode.decode import Written, convert, decode_json, decode_own, encode_json, encode_own
from istbench.base.decode.explain import literal_choices, type_at
from istbench.base.decode.files import missing_file, read_bytes, read_text, regular_file, utf8_path
from istbench.base.decode.toml import Locate, parse_toml, path_text, toml_lines

__all__ = [
    "Locate",
    "Written",
    "convert",
    "decode_json",
    "decode_own",
    "encode_json",
    "encode_own",
    "literal_choices",
    "missing_file",
    "parse_toml",
    "path_text",
    "read_bytes",
    "read_text",
    "regular_file",
    "toml_lines",
    "type_at",
    "utf8_path",
]
