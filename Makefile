# Needs make and Python 3.11 or newer; everything else is installed into three venvs here:
#   .venv-demo        the light runtime and a speech recogniser, no torch
#   .venv             all of it, for development
#   build/venv-wheel  what builds a wheel, and nothing else
# `make` alone lists the targets.

PYTHON ?= python3
# Held by hand, since each torch exports other graphs; the rest of the lock follows `make lock`.
TORCH ?= 2.13.0

DEMO_EXTRAS := cpu,engines,listen
DEMO_ENGINES := build/demo-engines
DEMO_TEXT := Good morning. The voice in this box was made in a few minutes, and it speaks without a network.
EXPORT_BUNDLE := build/demo-bundle
WHEEL_VENV := build/venv-wheel
EXPORT_ENGINES := build/demo-export-engines

.DEFAULT_GOAL := help
# Steps share venvs and build folders, and their output is read from top to bottom.
.NOTPARALLEL:
.PHONY: help demo demo-export test lint types unit test-gpu wheel-check wheel lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

demo: .venv-demo/.installed ## install the light runtime, build engines, speak to demo.wav, listen to it
	.venv-demo/bin/build-engines trt_runtime/data/demo --target cpu --out $(DEMO_ENGINES)
	.venv-demo/bin/ming-trt speak "$(DEMO_TEXT)" -o demo.wav --engines $(DEMO_ENGINES)
	.venv-demo/bin/python -m benchmarks.hear demo.wav --expect "$(DEMO_TEXT)" --most 0.3

demo-export: .venv/.installed ## the whole path from a small checkpoint to demo-export.wav
	.venv/bin/python -m export examples/demo-checkpoint $(EXPORT_BUNDLE)
	.venv/bin/build-engines $(EXPORT_BUNDLE) --target cpu --out $(EXPORT_ENGINES)
	.venv/bin/ming-trt speak "$(DEMO_TEXT)" -o demo-export.wav --engines $(EXPORT_ENGINES)
	.venv/bin/python -m benchmarks.hear demo-export.wav --expect "$(DEMO_TEXT)" --most 0.3

test: lint types unit wheel-check ## all that CI runs: lint, types, tests, the wheel

lint: .venv/.installed ## ruff: rules and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/.installed ## mypy
	.venv/bin/mypy

unit: .venv/.installed ## pytest
	.venv/bin/python -m pytest

# No venv: torch with CUDA and triton come with the machine. PYTHON names their interpreter.
test-gpu: ## the tests that need a CUDA GPU, torch and triton, with PYTHON as it is
	$(PYTHON) -m pytest tests/gpu --confcutdir=tests/gpu

wheel-check: .venv/.installed ## build the wheel, install it alone, speak with it
	.venv/bin/python tests/packaging/check_wheel.py

wheel: $(WHEEL_VENV)/.installed ## the wheel, into dist/
	rm -rf build/lib build/bdist.* # setuptools packs whatever an older build left there
	$(WHEEL_VENV)/bin/python -m build --wheel --outdir dist

lock: ## renew requirements.lock; another torch: make lock TORCH=2.14.0
	@$(require_python)
	$(PYTHON) tests/packaging/write_lock.py --torch $(TORCH)

clean: ## remove all that make made
	rm -rf .venv .venv-demo build dist *.egg-info demo.wav demo-export.wav \
		.mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

.venv/.installed: REQUIREMENT = -e '.[dev]'
.venv-demo/.installed: REQUIREMENT = -e '.[$(DEMO_EXTRAS)]'
$(WHEEL_VENV)/.installed: REQUIREMENT = build

# The stamp is written last and the venv made anew, so neither a broken install nor a package
# that left the lock survives. Editable: a change of the code needs no reinstall.
.venv/.installed .venv-demo/.installed $(WHEEL_VENV)/.installed: pyproject.toml requirements.lock
	@$(require_python)
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check \
		-c requirements.lock $(REQUIREMENT)
	touch $@

define require_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "ming-trt needs Python 3.11 or newer, and '$(PYTHON)' is" \
		"$$($(PYTHON) --version 2>/dev/null || echo 'not found')." \
		"Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
endef
