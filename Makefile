# Every target sets up what it needs in .venv; PYTHON=python3.12 chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Of make image. Jobs need the Python of their workflow.
IMAGE ?= farcall
BASE_IMAGE ?= python:$(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-slim
PIP_PACKAGES ?=
# Extras of the tests' environment.
EXTRAS ?= all
# Versions whose fast tests are part of make test-all; .ci/python installs them.
NEW_PYTHONS := 3.14 3.15
# Covalent's pins hold other packages back, and it does not support new versions of Python.
WITHOUT_COVALENT := demo,joblib,kubernetes,torchx,ui
# Test processes. Tests mostly wait, so six do not overload two processors.
WORKERS ?= 6
PYTEST := $(BIN)/python -m pytest
# In this order, long modules first.
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Tests start hundreds of processes, and each would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-covalent demo-page test test-all test-fast test-python test-newest test-lowest test-ci test-containers test-cluster test-aws installed collected chaos check docs dist coverage bench pictures bootstrap constraints image clean

help:
	@echo "make demo-covalent   train a model as a Batch job, from a Covalent workflow; needs no AWS account"
	@echo "                     (KEEP=1 keeps Covalent's page open)"
	@echo "make demo            the same from plain Python, and a sweep"
	@echo "make demo-page       the web UI with example workflows, until Ctrl-C"
	@echo "make test            the unit and contract tests, and one path through each integration"
	@echo "make test-ci         all tests but the slow ones, and one of each slow kind, as .ci/run does"
	@echo "make test-all        all tests, before a release"
	@echo "make test-fast       the unit and contract tests"
	@echo "make test-python     the same on a Python that Debian sid has: PYTHON=3.14 (as root; needs debootstrap)"
	@echo "make test-newest     the tests without constraints.txt, with the newest release of each dependency"
	@echo "make test-lowest     the tests with the oldest release of each dependency that pyproject.toml allows"
	@echo "make test-containers the tests of the image; starts a Docker engine if none is running (as root)"
	@echo "make test-cluster    the Kubernetes tests on a real cluster, in the namespace of a context:"
	@echo "                     KUBECONFIG=file FARCALL_TEST_KUBERNETES_IMAGE=image (any with a shell)"
	@echo "make test-aws        farcall in the account of your AWS credentials, from deploy to destroy, which costs"
	@echo "                     money; writes build/test-aws.md: FARCALL_TEST_AWS=1 (=emulator: a dry run)"
	@echo "make chaos           several hundred tasks while requests, containers, hosts and clients fail;"
	@echo "                     accounts for each (minutes; CHAOS='--seed 7 --tasks 400'; CHAOS=--help)"
	@echo "make check           ruff, mypy, import-linter, language check"
	@echo "make docs            the documentation, into build/site; fails on dead links"
	@echo "make dist            build the sdist and the wheel, check them, and run the demo from the wheel"
	@echo "make coverage        the lines and branches that the unit and contract tests run"
	@echo "make bench           run the benchmarks and write benchmarks/RESULTS.md (5 minutes;"
	@echo "                     BENCH='--only tasks --peer' runs one with the peer; BENCH=--help)"
	@echo "make pictures        the screenshots of the web UI in docs; needs Chromium or Chrome"
	@echo "make bootstrap       minify the program that starts jobs in the stock image"
	@echo "make constraints     resolve the dependencies again, into constraints.txt"
	@echo "make image           build the image of the jobs (needs docker):"
	@echo "                     IMAGE=name BASE_IMAGE=python:3.12-slim PIP_PACKAGES='numpy scikit-learn'"
	@echo "make clean           remove what the targets made"

demo: $(VENV)/demo
	@$(BIN)/farcall demo

demo-page: $(VENV)/demo-page
	@$(BIN)/farcall demo --page

# uv, where .ci/venv had to fetch it, serves the jobs' own installations too.
demo-covalent: $(VENV)/demo-covalent
	@PATH="$(CURDIR)/.uv/bin:$$PATH" $(BIN)/python examples/covalent_demo/run.py $(if $(KEEP),--keep)

test: $(VENV)/test
	$(PYTEST) $(SIDE_BY_SIDE) -m "not slow and not system"
	@echo "make test-ci runs all that must pass before a change lands, and make test-all everything:"
	@echo "Covalent servers, browsers, containers, demos, installations, gigabytes, chaos"

test-all: $(VENV)/test
	$(PYTEST) $(SIDE_BY_SIDE)
	@if [ "$$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then \
	    for version in $(NEW_PYTHONS); do $(MAKE) test-python PYTHON=$$version || exit 1; done; \
	else \
	    echo "Left out: the fast tests on Python $(NEW_PYTHONS), which need debootstrap and root."; \
	fi

# PYTHON is a version here, such as 3.14.
test-python:
	.ci/python "$(PYTHON)" $(MAKE) test-fast PYTHON=python3 VENV=.venv-$(PYTHON) EXTRAS=$(WITHOUT_COVALENT)

test-fast: $(VENV)/test
	$(PYTEST) $(SIDE_BY_SIDE) tests/unit tests/contract -m "not slow"

# In environments of their own, made from scratch.
test-newest: export RESOLUTION := highest
test-lowest: export RESOLUTION := lowest-direct
test-newest test-lowest: test-%:
	rm -rf .venv-$*
	@sh .ci/venv "$(PYTHON)" .venv-$* $(WITHOUT_COVALENT) test
	.venv-$*/bin/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not system"

# What .ci/run runs: all tests but the slow ones, and one path of each slow kind.
test-ci: $(VENV)/test
	$(PYTEST) $(SIDE_BY_SIDE) -m "not slow or path"

installed: $(VENV)/lint $(VENV)/docs $(VENV)/test

collected: $(VENV)/test
	$(PYTEST) --collect-only --quiet

test-containers: $(VENV)/test
	PYTHON="$(BIN)/python" .ci/with-engine $(PYTEST) tests/image

test-cluster: $(VENV)/test
	@test -n "$(KUBECONFIG)" || { echo "make test-cluster needs KUBECONFIG=file" >&2; exit 2; }
	$(PYTEST) tests/local/test_kube*.py --kubeconfig "$(KUBECONFIG)"

# One test after the other, because they share one stack.
test-aws: $(VENV)/test
	$(PYTEST) tests/aws

chaos: $(VENV)/test
	@$(BIN)/python -m tests.chaos $(CHAOS)

check: $(VENV)/lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests/typed_api.py
	$(BIN)/lint-imports
	$(BIN)/python .ci/language

# Not with --quiet: --strict would let dead links pass. The variable silences an advertisement.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/dist
	.ci/dist "$(abspath $(BIN))"

coverage: $(VENV)/coverage
	$(BIN)/coverage run -m pytest tests/unit tests/contract -m "not slow"
	$(BIN)/coverage report

bench: $(VENV)/test
	$(BIN)/python -m benchmarks $(BENCH)

pictures: $(VENV)/test
	@$(BIN)/python docs/pictures.py

# The part of the bootstrap that a job's command contains.
bootstrap: $(VENV)/test
	cd executor/farcall/backends && "$(abspath $(BIN))/pyminify" --remove-literal-statements \
	    --rename-globals --output bootstrap_program.min.txt bootstrap_program.py

# One resolution for all extras, groups and supported versions of Python; it keeps no index's name.
constraints: $(VENV)/test
	$(BIN)/uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --all-extras \
	    --group test --group docs --group lint --group dist --group coverage --no-annotate --quiet \
	    --custom-compile-command "make constraints" --output-file constraints.txt

image:
	docker build --tag "$(IMAGE)" --build-arg BASE_IMAGE="$(BASE_IMAGE)" \
	    --build-arg PIP_PACKAGES="$(PIP_PACKAGES)" .

clean:
	rm -rf --one-file-system $(VENV) .venv-* .pythons .uv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage

$(VENV)/demo: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) demo
	@touch $@

$(VENV)/demo-page: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) local,ui
	@touch $@

$(VENV)/demo-covalent: pyproject.toml constraints.txt .ci/venv
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info >= (3, 13) and "Covalent 0.240 supports Python 3.11 and 3.12: \
	make demo-covalent VENV=.venv-3.12 PYTHON=python3.12")'
	@sh .ci/venv "$(PYTHON)" $(VENV) covalent,demo,local
	@touch $@

$(VENV)/test: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) $(EXTRAS) test
	@touch $@

$(VENV)/docs: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) local,ui docs
	@touch $@

$(VENV)/dist: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) local dist
	@touch $@

$(VENV)/coverage: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) $(EXTRAS) test coverage
	@touch $@

$(VENV)/lint: pyproject.toml constraints.txt .ci/venv
	@sh .ci/venv "$(PYTHON)" $(VENV) all test lint
	@touch $@
