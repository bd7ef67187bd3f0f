"""The packages that each step of an export needs, and what to say where one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection

from trt_runtime.errors import UserError

#: By the names under which they are imported.
TO_CHECK = ("numpy", "ml_dtypes", "tokenizers")
TO_EXPORT = (*TO_CHECK, "onnx", "onnx_ir", "onnxscript", "torch")
TO_DOWNLOAD = ("huggingface_hub",)


def require_packages(purpose: str, packages: Collection[str]) -> None:
    """Raises UserError with the command that installs them where any of `packages` is missing.

    `purpose` begins the message: "Exporting a checkpoint". Nothing is imported to find out.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{purpose} needs packages that are not installed",
            expected=", ".join(packages),
            found=f"no {', no '.join(missing)}",
            do="pip install 'ming-trt[export]'",
        )
