"""What the runtime says in Python's words, said in the command line's.

The runtime's messages name arguments of Python functions: `max_steps`, `speaker_embedding=None`.
Whoever typed a command knows `--max-steps` and `--speaker-embedding none`.
"""

from __future__ import annotations

import re

#: Spellings in messages and what the command line has for each. A name is found in `name=value`,
#: with an underscore anywhere, and without one only where a message is about it: a text may hold
#: the word "voice". Anything that is no name is found as it stands.
SPELLINGS: dict[str, str] = {
    # The options of a request.
    "prompt": "--prompt",
    "instruction": "--instruction",
    "voice": "--voice",
    "reference": "--reference",
    "reference_text": "--reference-text",
    "speaker_embedding": "--speaker-embedding",
    "latents": "--no-latents",
    "posterior": "--posterior",
    "guidance": "--guidance",
    "sigma": "--sigma",
    "temperature": "--temperature",
    "min_steps": "--min-steps",
    "max_steps": "--max-steps",
    "seed": "--seed",
    "normalize": "--normalize",
    "split_limit": "--split-limit",
    "on_runaway": "--on-runaway",
    "retries": "--retries",
    "noise": "recorded noise (in Python only)",
    "trace": "a trace (in Python only)",
    "on_progress": "Ctrl-C",
    # Fields of what is spoken and how, and options of other functions.
    "emotion": "--emotion",
    "dialect": "--dialect",
    "style": "--style",
    "rate": "--rate",
    "pitch": "--pitch",
    "volume": "--volume",
    "ip": "--ip",
    "description": "--sound-event",
    "max_tokens": "--max-tokens",
    "chunk_patches": "--chunk-patches",
    "engines": "--engines",
    "threads": "--threads",
    "steps": "--steps",
    "slots": "--slots",
    "runs": "--runs",
    # Whole expressions.
    "latents=False": "--no-latents",
    "latents=True": "no --no-latents",
    "normalize=True": "--normalize",
    "split_limit=None": "--split-limit none",
    "speaker_embedding=None": "--speaker-embedding none",
    "speaker_embedding is not None": "--speaker-embedding is not none",
    "another speaker_embedding, or None,": "another --speaker-embedding, or none,",
    "voice={speaker: ...}": "--voice SPEAKER=NAME",
    "reference={speaker: ...}": "--reference SPEAKER=FILE",
    "voice=...": "--voice NAME",
    "reference=...": "--reference FILE",
    "reference=[...] with one recording a speaker": "--reference FILE once a speaker",
    'the typed form: a list of {"speaker": ..., "text": ...} with': "--script with",
    "which voice= opens": "which --voice opens",
    "voice alone": "--voice alone",
    "voice with reference or": "--voice with --reference or",
    "posterior and latents are": "--posterior and --no-latents are",
    "Instruction(emotion='happy')": "--emotion happy",
    "Instruction(background=Background(...))": "--background KEY=VALUE",
    "Music(...)": "--music",
    "Music(genre=..., mood=..., instrument=..., theme=..., duration=...)": "--music genre=... "
    "mood=... instrument=... theme=... duration=...",
    "the whole instruction as a mapping": "the whole --instruction as JSON",
    "a whole number of 20 or more": "none, or a number of 20 or more",
    "normalize needs the package": "Spelling out needs the package",
    "or leave normalize out": "or leave --normalize out",
    "make a voice (encode_voice)": "make a voice (ming-trt voices add)",
    "load(..., slots=...) with fewer": "ask for fewer --slots",
    "ended by max_steps": "ended by --max-steps",
    "names in trt_runtime.instruction_values.VOICES": "names of the model's authors",
    "use normalize=True, which asks a library and not the model": "leave out --model, and a "
    "library writes it",
}

#: Neither inside a longer word nor in a path.
_BEFORE, _AFTER = r"(?<![\w./\\-])", r"(?![\w/\\-]|\.\w)"
_NAMES = "|".join(name for name in SPELLINGS if name.isidentifier())
_WITH_UNDERSCORE = "|".join(name for name in SPELLINGS if name.isidentifier() and "_" in name)
#: The longest first: one may begin as another does.
_EXPRESSIONS = "|".join(
    re.escape(text) for text in sorted(SPELLINGS, key=len, reverse=True) if not text.isidentifier()
)
_SPELLING = re.compile(
    rf"{_BEFORE}(?:(?P<expression>{_EXPRESSIONS})"
    rf"|(?P<given>{_NAMES})=(?P<value>\"[^\"]*\"|'[^']*'|-?\w+(?:\.\w+)?)"
    rf"|(?P<name>{_WITH_UNDERSCORE}){_AFTER}"
    # Where a message is about it: "retries cannot be used", "change retries, or leave it out".
    rf"|(?:^|(?<=Expected: no )|(?<=change )|(?<=leave ))(?P<subject>{_NAMES})"
    r"(?= (?:out\b|cannot be|is |has |holds |needs )|, or leave it out|\.$))",
    re.MULTILINE,
)


def in_options(message: str) -> str:
    """A message of the runtime as the command line says it."""
    return _SPELLING.sub(_in_option, message)


def _in_option(found: re.Match[str]) -> str:
    if found["given"]:
        return f"{SPELLINGS[found['given']]} " + found["value"].strip("\"'")
    return SPELLINGS[found["expression"] or found["name"] or found["subject"]]
