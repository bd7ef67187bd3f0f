"""The packages that comparing needs, looked for before anything imports them."""

from __future__ import annotations

import importlib.util

from trt_runtime.errors import UserError

#: By the names under which they are imported. matplotlib only where something is drawn.
TO_COMPARE = ("ml_dtypes", "onnx", "onnxruntime", "polygraphy")
TO_PLOT = ("matplotlib",)


def require_packages(purpose: str, packages: tuple[str, ...]) -> None:
    """Raises UserError with the command that installs them where any is missing.

    `purpose` begins the message: "Comparing". Nothing is imported to find out.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{purpose} needs packages that are not installed",
            expected=", ".join(packages),
            found=f"no {', no '.join(missing)}",
            do="pip install 'ming-trt[cpu,compare]' (on a GPU: 'ming-trt[cuda,compare]')",
        )
