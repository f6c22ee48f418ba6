# Every target first makes .venv what requirements-dev.lock says. The network is needed only when the
# lock's content is not what was installed last.

UV := tools/uv
BIN := .venv/bin
READY := .venv/.ready
PYTHONS := >=3.11,<3.15
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade)

.PHONY: help demo up test test-redis check format bench lock clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ' *## *' '/^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## half a minute of a bus at work, and the account of it
	@$(BIN)/routemaster demo $(ARGS)

up: $(READY) ## run a bus in ./.routemaster (ARGS="--port 8080")
	@$(BIN)/routemaster up $(ARGS)

test: check ## the checks, then the tests (ARGS="-k order")
	@$(BIN)/pytest $(ARGS)

test-redis: $(READY) ## the store's tests on an installed server (TEST_STORE_SERVER=/path/to/redis-server)
	@TEST_STORE_SERVER=$$($(BIN)/python -m tests.server) && export TEST_STORE_SERVER \
		&& $(BIN)/pytest tests/store tests/chaos/test_failover.py $(ARGS)

check: $(READY) ## format, lint, types, import layers
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-cache --no-logo

format: $(READY) ## put the code into the house format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

bench: $(READY) ## measure, and compare with the goals (ONLY=publish)
	@$(BIN)/python -m benchmarks $(ONLY)

lock: ## resolve dependencies again (UPGRADE=1 to take newer ones)
	@$(COMPILE) pyproject.toml --output-file requirements.lock
	@$(COMPILE) pyproject.toml --group dev --constraints requirements.lock --output-file requirements-dev.lock

clean: ## remove what make made; a bus's own folder stays
	@rm -rf .venv .uv .pytest_cache .ruff_cache .hypothesis dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements-dev.lock pyproject.toml
	@$(UV) --version >/dev/null
	@$(BIN)/python -c '' 2>/dev/null \
		|| $(UV) venv --quiet --clear --python-preference system --python '$(PYTHONS)' .venv \
		|| { echo "routemaster: needs Python $(PYTHONS); none was found and none could be fetched:" \
			"install one and run make again" >&2; exit 1; }
	@cmp -s requirements-dev.lock .venv/.lock || { \
		echo "routemaster: installing $$(grep -c '==' requirements-dev.lock) packages into .venv …" >&2; \
		$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.lock; } \
		&& cp requirements-dev.lock .venv/.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
