# The two commands a newcomer needs: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint unit clean
.DEFAULT_GOAL := demo

$(VENV)/demo.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/test.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[capture,dev,gpu-test]'
	@touch $@ $(VENV)/demo.stamp

demo: $(VENV)/demo.stamp  ## set up, then diagnose the bundled sample
	$(BIN)/stepscope demo

test: lint unit  ## everything the tests need, then all checks

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/test.stamp
	$(BIN)/pytest --numprocesses 2 --cov --cov-report term

clean:
	rm -rf $(VENV)
