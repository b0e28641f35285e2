# Everything a fresh machine with Python >= 3.11 and make needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# TORCH=cpu: PyTorch without the CUDA libraries, some 3 GB less to download and to keep.
TORCH ?= default
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_PACKAGES := torch|torchvision
CUDA_PACKAGES := triton|nvidia-[a-z0-9-]+|cuda-[a-z]+
# Every package of development with its files' hashes.
DEV_LOCK := requirements-dev.txt
# mypy of programs outside the package: calls and names, without the types of values.
PROGRAM_CHECKS := --config-file= --cache-dir=$(CURDIR)/.mypy_cache/programs --ignore-missing-imports --follow-imports=silent --check-untyped-defs \
	$(addprefix --disable-error-code=,arg-type dict-item assignment misc var-annotated)

.PHONY: help install install-latest dist release images lock lock-dev lock-server audit pin docs simulate test test-fast test-all test-attacks test-cluster test-docs test-experiments test-papers test-faults test-flower-latest test-strategies test-oldest test-arm64 test-playbook lint packages clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## virtual environment with everything, in .venv, always the same versions

# The packages of the lock whose names match, or with ! do not match.
locked = awk '/^[a-z]/ {on = $(2) /^($(1))==/} on' $(DEV_LOCK)
# uv takes a third of pip's time, but does not know pip.conf; then pip installs the same files.
add = $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || \
	{ echo 'uv could not install them (see above); pip tries'; $(BIN)/python -m pip install --quiet $(1); }
too_old = $(PYTHON) is older than Python 3.11; use make PYTHON=python3.11
no_cpu_index = PyTorch without CUDA is at $(TORCH_CPU_INDEX) alone, which cannot be reached from here (see above); \
	make install, without TORCH=cpu, does not need it
cpu_packages = $(call locked,$(TORCH_PACKAGES)) | sed -n 's/^\([a-z]*==[^ ;]*\).*/\1/p'

# --no-deps: the lock has every package that is needed, and of axe-playwright-python only its copy of axe-core.
$(VENV)/.installed: pyproject.toml $(DEV_LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(too_old)")'
	$(PYTHON) -m venv $(VENV)
	@echo 'installing the packages of $(DEV_LOCK): some minutes, and 7 GB with CUDA'
	@$(call locked,uv) > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement $(VENV)/uv.txt
ifeq ($(TORCH),cpu)
	@$(BIN)/python -m pip install -qq --no-deps --index-url $(TORCH_CPU_INDEX) $$($(cpu_packages)) || \
		{ echo '$(no_cpu_index)'; exit 1; }
	@$(call locked,$(TORCH_PACKAGES)|$(CUDA_PACKAGES),!) > $(VENV)/packages.txt
else
	@cp $(DEV_LOCK) $(VENV)/packages.txt
endif
	@$(call add,--no-deps --require-hashes --requirement $(VENV)/packages.txt)
	@$(call add,--no-deps --no-build-isolation --editable .)
	touch $@

install-latest: install ## the newest versions that pyproject.toml allows, instead of those of the lock
	@$(call add,--upgrade --editable '.[dev]')

simulate: install ## the default experiment: FedPer on scikit-learn's digits, 10 clients
	$(BIN)/fedpfl run
	@echo 'Over three seeds FedPer reaches 95.3 % here, local training 91.8 % and FedAvg 96.3 %; README.md has more'

docs: install ## the documentation's site, in build/site; needs no network, fails on a warning or a dead link
	$(BIN)/python docs/tools/run_records.py
	$(BIN)/python docs/tools/method_pages.py
	$(BIN)/python docs/tools/gallery.py
	$(BIN)/python docs/tools/outputs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: install ## ruff and mypy; of the programs outside the package only names and calls
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy experiments/*/analyses/*.py
	for folder in benchmarks docs/tools docs/gallery $$(dirname experiments/*/*.py | sort -u); do \
		(cd $$folder && $(abspath $(BIN))/mypy $(PROGRAM_CHECKS) *.py) || exit 1; done

# The account of Flower Hub under which the app is published.
PUBLISHER ?= fedpfl
# SIGNING_KEY=~/.ssh/id_ed25519 signs the checksums; jetson/verify.sh checks them.
dist: install ## wheel, source package, Flower's bundle and Flower Hub's folder in dist/, with lists of packages and checksums
	mkdir -p dist
	rm -rf dist/fedpfl* dist/hub dist/SHA256SUMS*
	$(BIN)/hatchling build --directory dist
	cd dist && $(abspath $(BIN))/flwr build --app ..
	$(BIN)/python docs/tools/hub.py dist/fedpfl*.fab dist/hub/fedpfl --publisher $(PUBLISHER)
	$(call sbom,deploy/requirements-server.txt,server)
	$(call sbom,jetson/requirements-nano.txt,device)
	cd dist && find fedpfl* hub -type f | sort | xargs sha256sum > SHA256SUMS
	@$(if $(SIGNING_KEY),ssh-keygen -q -Y sign -f $(SIGNING_KEY) -n fedpfl dist/SHA256SUMS, \
		echo 'dist/SHA256SUMS is not signed; make dist SIGNING_KEY=~/.ssh/id_ed25519 signs it')

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' fedpfl/version.py)

release: dist ## the files of make dist, and build/notes.md: what CHANGELOG.md tells of this version
	mkdir -p build
	awk -v version=$(VERSION) '/^## / {on = $$2 == version || $$2 == version ","} on' CHANGELOG.md > build/notes.md
	@test -s build/notes.md || { echo 'CHANGELOG.md tells nothing of $(VERSION)'; exit 1; }
	@! grep -q 'not released yet' build/notes.md || echo 'CHANGELOG.md: give $(VERSION) its date before it is published'

# CycloneDX: every package of a lock, its version and its files' hashes.
sbom = $(BIN)/cyclonedx-py requirements --no-validate --pyproject pyproject.toml --mc-type application \
	--output-reproducible --output-file dist/fedpfl-$(2).cdx.json $(1)

# Pins that are there stay; LOCK_OPTIONS=--upgrade renews them.
compile = UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--only-binary :all: --generate-hashes $(LOCK_OPTIONS)
NOT_LOCKED := playwright pyee rfc3987-syntax lark
lock: lock-dev lock-server ## the packages with their hashes, from pyproject.toml

# rfc3987-syntax is for checks of a list of packages that make dist leaves out. Each process that imports jsonschema, as
# all of Ray's do, would make its parser, which takes a second and a half.
lock-dev: install ## those of make install alone
	echo axe-playwright-python | $(compile) --extra dev $(NOT_LOCKED:%=--no-emit-package %) \
		--output-file $(DEV_LOCK) pyproject.toml -

# LOCK_OPTIONS='--torch-backend cpu' leaves CUDA out.
LOCK ?= deploy/requirements-server.txt
lock-server: install ## those of a server alone; LOCK=FILE writes another file
	echo 'hatchling>=1.25' | $(compile) --extra mqtt --output-file $(LOCK) pyproject.toml -

LOCKS := $(DEV_LOCK) deploy/requirements-server.txt jetson/requirements-nano.txt
# With --strict a package that is not found is an error, and no package that is safe.
audit: install ## known vulnerabilities of all three locks, but those of deploy/accepted-vulnerabilities.txt; needs the network
	@for lock in $(LOCKS); do \
		accepted=$$(awk -v lock=$$lock '$$1 == lock {print "--ignore-vuln", $$2}' deploy/accepted-vulnerabilities.txt); \
		$(BIN)/uv tool run pip-audit==2.10.1 --strict --disable-pip --require-hashes $$accepted --requirement $$lock \
		|| { echo "$$lock: see above"; failed=1; }; \
	done; exit $${failed:-0}

pin: ## the digests that deploy/docker's images have now; needs docker and the network
	@for image in $$(sed -n 's/^FROM \([^@ ]*\).*/\1/p' deploy/docker/*.Dockerfile | sort -u); do \
		docker pull --quiet $$image >/dev/null && digest=$$(docker image inspect --format '{{index .RepoDigests 0}}' $$image) \
		&& sed -i "s|^FROM $$image[^ ]*|FROM $$image@$${digest#*@}|" deploy/docker/*.Dockerfile \
		&& echo "$$image@$${digest#*@}" || exit 1; \
	done

images: ## the container images fedpfl-server and fedpfl-device of this checkout; needs docker and the network
	for part in server device; do \
		docker build --file deploy/docker/$$part.Dockerfile --tag fedpfl-$$part . || exit 1; done

# The command, and the package if it has another name.
TOOLS := mosquitto shellcheck bats chromium

packages: ## what tests use of Debian's or Ubuntu's packages, if it is missing and this is root
	@missing=; for tool in $(TOOLS); do \
		PATH="$$PATH:/usr/sbin" command -v $${tool%%=*} >/dev/null || missing="$$missing $${tool#*=}"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		failed=; for tool in $$missing; do \
			(apt-get install -y -q $$tool || (apt-get update -q && apt-get install -y -q $$tool)) >/dev/null \
			|| failed="$$failed $$tool"; done; \
		[ -z "$$failed" ] || echo "could not be installed:$$failed; the tests that need them are skipped"; \
	else echo "not installed:$$missing; the tests that need them are skipped (apt-get install$$missing)"; fi

test: lint packages ## lint, then the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

# What the arithmetic is made of: two minutes.
FAST := core layers models rules setup training
test-fast: install ## under two minutes: arithmetic, models, settings and rules, nothing that starts Flower or whole runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup tests/test_layering.py $(FAST:%=tests/%)
	@echo 'left out (make test has them): $(filter-out $(FAST),$(patsubst tests/%/,%,$(sort $(dir $(wildcard tests/*/)))))'

test-all: lint packages ## the suite with every method, testbed and installation for which others stand in `make test`
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup \
		-m 'not (cluster or faults or experiments or playbook or papers or attacks or docs)'

# Those of a few seconds are part of `make test`, too.
test-attacks: install packages ## malicious clients, damaged files, greedy devices; minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m '' tests/attacks

test-cluster: install ## Flower itself: a Ray cluster of two nodes, a SuperLink with two SuperNodes, all strategies; 15 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster tests/flower

# What meets Flower: messages and Grid, `flwr run .`, `fedpfl up`, bridge, worker and fork server, and its private names.
FLOWER_TESTS := tests/test_flower_private.py tests/test_layering.py tests/flower tests/bench tests/cli/test_follow.py \
	tests/client tests/deployment/test_faults.py tests/deployment/test_up.py tests/engine/test_federation.py \
	tests/engine/test_recorded_runs.py tests/launch
LATEST := build/flower-latest

# Flower alone, or what $(2) names, in a virtual environment $(1) of its own, which finds everything else in the other one.
define environment_with
	rm -rf $(1)
	$(BIN)/python -m venv --without-pip $(1)
	$(BIN)/python -m pip --python $(1)/bin/python install --quiet --no-deps $(2)
	folder="import sysconfig; print(sysconfig.get_path('purelib'))"; \
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$folder")')" \
		> "$$($(1)/bin/python -c "$$folder")/everything-else.pth"
	$(1)/bin/python -c 'from importlib.metadata import version; print("flwr", version("flwr"))'
endef

test-flower-latest: install packages ## those tests that meet Flower, with the newest flwr of the registry
	$(call environment_with,$(LATEST),flwr)
	PATH="$$PATH:$(abspath $(BIN))" OMP_NUM_THREADS=1 $(LATEST)/bin/python -m pytest -n 2 --dist loadgroup \
		-m 'not faults' $(FLOWER_TESTS)

# The library and the strategies take each Flower from this one on.
FLOWER ?= 1.22.0
OLDER := build/flower-$(FLOWER)
STRATEGY_TESTS := $(patsubst %,tests/flower/test_%.py,plain_app keep fit fedpfl_clients flowers_loop other_systems \
	nodes_without_numbers acts_or_refused)

test-strategies: install ## the strategies and the nodes' half of them with an older flwr: FLOWER=1.22.0
	$(call environment_with,$(OLDER),flwr==$(FLOWER))
	OMP_NUM_THREADS=1 $(OLDER)/bin/python -m pytest -n 2 --dist loadgroup $(STRATEGY_TESTS)

# Of what pyproject.toml asks for the oldest versions that it allows, of everything else the newest.
OLDEST := build/oldest
test-oldest: install ## arithmetic, rules and the strategies with the oldest dependencies that pyproject.toml allows
	rm -rf $(OLDEST)
	$(BIN)/python -m venv --without-pip $(OLDEST)
	$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct --editable '.[notebook]' \
		'pytest>=8,<9.2' 'pytest-timeout>=2.3' 'pytest-xdist>=3.6' 'hypothesis>=6.100'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 --dist loadgroup \
		tests/core tests/rules $(STRATEGY_TESTS)

test-docs: install packages ## the commands of the README and of pages print what is shown there; twenty minutes
	$(BIN)/python -m pytest -m docs

test-experiments: install ## every experiment at smoke scale, in one process; a quarter of an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m experiments tests/study

test-papers: install ## the papers' settings at their own size, 3 rounds of two clients each, on FEDPFL_TEST_DATA; hours
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m papers tests/papers

test-faults: install packages ## kill parts of a running testbed; 25 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults

test-arm64: TOOLS := qemu-aarch64-static=qemu-user-static debootstrap
test-arm64: install packages ## jetson/install.sh for real, on an emulated Cortex-A57; needs root, a quarter of an hour
	PYTHON=$(abspath $(BIN)/python) tests/jetson/arm64.sh

test-playbook: TOOLS := systemctl=systemd sshd=openssh-server sudo chronyd=chrony mosquitto dbus-daemon=dbus ip=iproute2
test-playbook: install packages ## deploy/ansible applied to a laptop and two boards in namespaces; needs root, an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -x -m playbook --timeout 3600 tests/deployment/test_playbook.py

clean: ## remove the virtual environments
	rm -rf $(VENV) build/flower-*
