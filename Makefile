# Every target sets up what it needs in .venv; PYTHON=python3.12 chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test check bench image clean

help:
	@echo "make demo    train a model as a Batch job and run a sweep; needs no AWS account"
	@echo "make test    the tests"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make bench   the benchmarks; writes benchmarks/RESULTS.md"
	@echo "make image   build the image of the jobs (needs docker)"
	@echo "make clean   remove what the targets made"

demo: $(VENV)/demo
	@$(BIN)/farcall demo

test: $(VENV)/test
	$(BIN)/python -m pytest

check: $(VENV)/lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/test
	$(BIN)/python -m benchmarks

image:
	docker build --tag farcall .

clean:
	rm -rf $(VENV) .uv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/demo: pyproject.toml .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) demo
	@touch $@

$(VENV)/test: pyproject.toml .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) all test
	@touch $@

$(VENV)/lint: pyproject.toml .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) all test lint
	@touch $@
