# `make demo` and `make test` are all a newcomer needs; each prepares what it uses in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test lint clean

setup: .venv/core

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

# with every family and sink that the tests use
.venv/dev: .venv/core
	$(PIP) --editable '.[dev,atari,box2d,dmc,marl,minigrid,mujoco,robotics,vizdoom,vmas,tensorboard,tune,video,team,parquet,onnx,hub]'
	touch $@

demo: .venv/core
	$(BIN)/cadenza train CartPole-v1:ppo --seed 1 --name demo evaluation.video=true
	@echo "the report: $$(pwd)/runs/$$(cat runs/@last)/report.md"

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/mypy

# timing tests want the machine to themselves
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not timing and not full"
	$(BIN)/python -m pytest -m timing

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
