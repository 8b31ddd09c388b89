"""Speech from eSpeak NG through its C interface, from the `espeakng-loader` package.

The library keeps its state in globals and is not thread-safe: use one `Synthesizer` at a time in a process. This
module imports only numpy and the loader, so rendering processes start quickly.
"""

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.errors import UserError

SAMPLE_RATE = 22_050  # of eSpeak NG's formant synthesizer, in Hz

ACCENTS = (
    "en-us",
    "en-us-nyc",
    "en",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbcwmd",
    "en-gb-x-gbclan",
    "en-029",
)

# From espeak-ng's speak_lib.h.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_POSITION_CHARACTER = 1
_CHARS_UTF8 = 1
_RATE, _PITCH, _RANGE = 1, 3, 4

_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def require() -> None:
    """Check that eSpeak NG can be loaded.

    Raises:
        UserError: naming the extra to install, if the `espeakng-loader` package is missing.
    """
    if importlib.util.find_spec("espeakng_loader") is None:
        raise UserError(
            "the synthetic speech data needs eSpeak NG: pip install espeakng-loader, "
            "or give recorded words with --data DIR"
        )


def voice_variants() -> tuple[str, ...]:
    """The sorted names of the library's voice variants."""
    import espeakng_loader

    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    return tuple(sorted(entry.name for entry in folder.iterdir()))


class Synthesizer:
    """The eSpeak NG library, initialised. Use as a context manager, one at a time in a process.

    The sound of a word depends on the words before it (a variant's speed and noise carry over), even after another
    initialisation. The same calls in two new processes give the same samples.

    Args:
        seed: seed of the library's random numbers, which otherwise depend on the process.
    """

    def __init__(self, seed: int = 1) -> None:
        require()
        import espeakng_loader

        try:
            self._library: Any = ctypes.CDLL(espeakng_loader.get_library_path())
        except OSError as error:
            raise _broken(f"could not be loaded ({error})") from None
        data = str(espeakng_loader.get_data_path()).encode()
        rate = self._library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data, _INITIALIZE_DONT_EXIT)
        if rate != SAMPLE_RATE:
            raise _broken(f"did not start (code {rate})")
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._chunks: list[np.ndarray] = []
        # An attribute, because the library calls it after this method returns.
        self._callback: Callable[..., int] = _SynthCallback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def __enter__(self) -> "Synthesizer":
        return self

    def __exit__(self, *exception: object) -> None:
        self._library.espeak_Terminate()

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    def say(self, text: str, *, voice: str, rate: int, pitch: int, pitch_range: int) -> np.ndarray:
        """Speak `text` and return its samples: int16 [t] at `SAMPLE_RATE`.

        Args:
            voice: accent and variant, such as "en-us+m3".
            rate: words per minute, 80 to 450.
            pitch, pitch_range: 0 to 100; 50 is the default of the voice.

        Raises:
            UserError: if the installed library has no such voice.
        """
        library = self._library
        if library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise _broken(f"has no voice {voice!r}")
        for parameter, value in ((_RATE, rate), (_PITCH, pitch), (_RANGE, pitch_range)):
            library.espeak_SetParameter(parameter, value, 0)
        self._chunks.clear()
        encoded = text.encode()
        library.espeak_Synth(encoded, len(encoded) + 1, 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None)
        library.espeak_Synchronize()
        return np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)


def _broken(what: str) -> UserError:
    way_out = "pip install --force-reinstall espeakng-loader, or give recorded words with --data DIR"
    return UserError(f"eSpeak NG {what}: {way_out}")
