# `make demo` and `make test` are all a newcomer needs; each prepares what it uses in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/python $(INSTALL)

# every family and sink that can share one environment
EXTRAS := dev,atari,box2d,marl,minigrid,mujoco,robotics,vizdoom,vmas,tensorboard,tune,video,team,pandas,parquet,onnx,hub

# the others, each with its tests, in an environment of its own: .venv-NAME
ALONE := brax envpool minari pusht ray retro wandb
TESTS_brax := tests/unit/envs/test_brax.py
TESTS_envpool := tests/unit/envs/test_envpool.py
TESTS_minari := tests/unit/data/test_minari.py
TESTS_pusht := tests/unit/envs/test_pusht.py
TESTS_ray := tests/faults/test_sweep_on_ray.py
TESTS_retro := tests/unit/envs/test_retro.py
TESTS_wandb := tests/unit/watch/test_wandb.py tests/unit/lab/test_wandb_dashboard.py tests/unit/lab/sweeps/test_wandb_agent.py

.PHONY: setup demo test test-full test-all lint format clean $(ALONE:%=test-%)

setup: .venv/core

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

# dm_control asks for labmaze, which its suite does not use and which has no wheels for Python 3.13
.venv/dev: .venv/core
	$(PIP) --editable '.[$(EXTRAS)]'
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then $(PIP) --editable '.[dmc]'; \
	else $(PIP) absl-py dm-env dm-tree glfw lxml protobuf pyopengl pyparsing requests scipy tqdm && $(PIP) --no-deps dm_control; fi
	touch $@

demo: .venv/core
	$(BIN)/cadenza train CartPole-v1:ppo --seed 1 --name demo evaluation.video=true
	@echo "the report: $$(pwd)/runs/$$(cat runs/@last)/report.md"

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# timing tests want the machine to themselves
test: lint
	$(BIN)/python -m pytest -m timing
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not full and not timing"

# whole matrices, of which `make test` tries a part
test-full: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "full and not timing"

test-all: test test-full $(ALONE:%=test-%)

# pytest's exit code 5, no tests, fails too: a marker or a file that was renamed must not pass unseen
$(ALONE:%=test-%): test-%: .venv-%/ready
	.venv-$*/bin/python -m pytest -m "not timing" $(TESTS_$*)

.PRECIOUS: .venv-%/ready
.venv-%/ready: pyproject.toml constraints.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(INSTALL) --editable '.[dev,$*]'
	touch $@

clean:
	rm -rf .venv $(ALONE:%=.venv-%) build dist .pytest_cache .mypy_cache .ruff_cache
