"""A process of its own that parses and builds one engine: the library can crash or take for ever.

    python -m engines.tensorrt_child JOB.json

Lines of JSON on standard output say how far it is and, last, what came of it; what the library says
goes to standard error. The job is a file of :class:`engines.tensorrt_job.EngineJob`; the engine is
written where that says, and only a whole one.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from engines.tensorrt_job import EngineJob
from engines.tensorrt_network import (
    Refused,
    check_network,
    configure,
    keep_timing_cache,
    parse,
)
from trt_runtime.memory import peak_memory
from trt_runtime.tensorrt_library import Library, load_library


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def build(job: EngineJob, library: Library) -> dict[str, Any]:
    """Builds the engine; returns what the parent wants to know. Raises Refused with the reason."""
    module = library.module
    started = time.monotonic()
    builder = module.Builder(library.logger)
    network = parse(library, builder, job)
    parsed = time.monotonic()
    say(phase="parsed", layers=network.num_layers)
    check_network(network, job)
    config = configure(library, builder, network, job, say)
    serialized = builder.build_serialized_network(network.network, config)
    if serialized is None:
        raise Refused("The library built nothing", "; ".join(library.logger.errors))
    if job.timing_cache:
        keep_timing_cache(config, Path(job.timing_cache))
    part = Path(job.engine + ".part")
    part.write_bytes(serialized)
    part.rename(job.engine)
    return {
        "layers": network.num_layers,
        "parse_seconds": round(parsed - started, 3),
        "build_seconds": round(time.monotonic() - parsed, 3),
        "bytes": Path(job.engine).stat().st_size,
        "peak_memory_bytes": peak_memory(),
    }


def _end_with_the_parent() -> None:
    """Ends this process when nobody waits for it any more: then its standard input is closed."""
    # Not sys.stdin: a thread that waits in it aborts the interpreter at its end.
    while os.read(0, 4096):
        pass
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Exit status 0 with a last line that has `result`, 3 with `refused`, 4 with `os_error`."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    job = EngineJob.from_json(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        result = build(job, load_library(job.target))
    except Refused as error:
        say(refused=error.what, found=error.found)
        return 3
    except OSError as error:
        say(os_error=error.errno or errno.EIO)
        return 4
    say(result=result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
