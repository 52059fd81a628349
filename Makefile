# make run    builds and starts Sandbar, prints a link
# make dist   the program that is shipped: dist/sandbar, its checksum and its bill of materials
# make test   installs what the tests need and runs them all
# make soak   the tests that repeat something, for long
# make stress the tests on a machine that is busy with other things
# make test-kubernetes  a whole cluster of one node, and what needs one on it; with KUBECONFIG set, on that one
# make image  the container image of server and guests, with docker or podman
# make attacks  tries to break out, as this user and as an ordinary one; ATTACK=part-of-a-name chooses
# make lint   format, clippy, dependency policy
# make fuzz   each fuzz target for FUZZ_SECONDS (60); make test gives each one second
# make corpus real programs inside a sandbox
# make bench  measures against peers on this machine
# make bench-kubernetes  measures claims on a cluster of its own against the controller's word

SHELL := /bin/bash
.DEFAULT_GOAL := help
TUPLE := $(shell rustc --print host-tuple 2>/dev/null)
TARGET := $(or $(CARGO_TARGET_DIR),target)
QUICK := $(TARGET)/$(TUPLE)/quick/sandbar
DIST := dist/sandbar
DOCKER := $(shell command -v docker || command -v podman)
# Whom this machine trusts, for an image that has nothing else.
ROOTS := /etc/ssl/certs/ca-certificates.crt
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# A package is installed only when its program is missing, so that a second run needs no network.
define need
	@PATH="$$PATH:/usr/sbin" command -v $(1) >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq $(2); }
endef

# What is only compared with may be missing: the script says so.
define wish
	@PATH="$$PATH:/usr/sbin" command -v $(1) >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq $(2); } || echo "not installed: $(1)"
endef

.PHONY: help run build build-needs dist image test test-build test-docs test-kubernetes test-needs kubernetes-needs test-user soak stress attacks lint format deny fuzz corpus bench bench-kubernetes bench-needs

help:
	@sed -n 's/^# make/make/p' $(MAKEFILE_LIST)

build-needs:
	$(call need,cc,build-essential)

build: build-needs
	cargo build --profile quick --locked -p sandbar

run: build
	$(QUICK) up

# One unit and link-time optimisation: slow to build, small and fast.
dist: build-needs
	$(call need,python3,python3)
	cargo build --profile dist --locked -p sandbar
	mkdir -p $(dir $(DIST)) && install -m 0755 $(TARGET)/$(TUPLE)/dist/sandbar $(DIST)
	python3 .ci/sbom.py $(DIST) >$(DIST).cdx.json
	cd $(dir $(DIST)) && sha256sum sandbar sandbar.cdx.json >SHA256SUMS && ls -l && cat SHA256SUMS

image: dist
	@[ -n "$(DOCKER)" ] || { echo "make image: neither docker nor podman is installed" >&2; exit 1; }
	@[ -e $(ROOTS) ] || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq ca-certificates; }
	mkdir -p target/image && install -m 0755 $(DIST) target/image/sandbar && install -m 0644 $(ROOTS) target/image/
	$(DOCKER) build -t sandbar:latest --target prebuilt -f Dockerfile target/image

# busybox makes the test image, setpriv becomes an ordinary user, unshare makes a host without user namespaces.
test-needs: build-needs
	@[ -e /bin/busybox ] || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq busybox-static; }
	$(call need,setpriv,util-linux)
	$(call need,python3,python3)
	$(call need,curl,curl)
	$(call need,tmux,tmux)
	$(call need,gdb,gdb)
	$(call need,strace,strace)
	$(call need,git,git)
	$(call wish,pip3,python3-pip)
	$(call wish,npm,npm)
	$(call wish,go,golang-go)
	$(call wish,vim,vim)
	$(call wish,less,less)
	$(call wish,htop,htop)
	$(call wish,ssh,openssh-client)
	$(call wish,chromium,chromium)
	$(call wish,tinyproxy,tinyproxy-bin)
	$(call wish,microsocks,microsocks)
	@[ ! -d /run/systemd/system ] || command -v /usr/sbin/sshd >/dev/null || echo "not installed: sshd, whose package would start a service"
	@[ -d /run/systemd/system ] || command -v /usr/sbin/sshd >/dev/null || \
	  { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq openssh-server; } || echo "not installed: sshd"
	@[ ! -d /run/systemd/system ] || [ -n "$(POSTGRES)" ] || echo "not installed: PostgreSQL, whose package would start a service"
	@[ -d /run/systemd/system ] || [ -n "$(POSTGRES)" ] || \
	  { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq postgresql; } || echo "not installed: PostgreSQL"
	@[ -d "$(CLAUDE_CODE)" ] || $(INSTALL_CLAUDE_CODE) || echo "not installed: Claude Code, which the terminals' tests run"
	@[ -d "$(WEBHOOK_VERIFIER)" ] || $(INSTALL_WEBHOOK_VERIFIER) || echo "not installed: standardwebhooks, which verifies what webhooks sign"
	@[ -d "$(MCP_CLIENT)" ] || $(INSTALL_MCP_CLIENT) || echo "not installed: mcp, the client that the tests of MCP run"
	@[ -d "$(MCP_INSPECTOR)" ] || $(INSTALL_MCP_INSPECTOR) || echo "not installed: the MCP inspector, which the tests of MCP run"
	@[ -d "$(AGENT_SANDBOX)" ] || $(INSTALL_AGENT_SANDBOX) || echo "not installed: k8s-agent-sandbox, the client that drives sandboxd and the router, and grpcio-tools, which makes clients of gRPC"
	@[ -d "$(OPENAPI)" ] || $(INSTALL_OPENAPI) || echo "not installed: openapi-spec-validator and openapi-python-client, which read openapi.json"
	@[ -d "$(OPENAPI_TYPESCRIPT)" ] || $(INSTALL_OPENAPI_TYPESCRIPT) || echo "not installed: openapi-typescript, which reads openapi.json"
	@[ -d "$(PYTHON_PACKAGES)/openai" ] || $(INSTALL_PYTHON_PACKAGES) || echo "not installed: the Python packages that the gate's tests run"

POSTGRES := $(wildcard /usr/lib/postgresql/*/bin/postgres)

# What runs inside sandboxes is the system's Python, whatever else is first in PATH. Renamed last, so that half is nothing.
PYTHON_PACKAGES := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/python
INSTALL_PYTHON_PACKAGES = { rm -rf "$(PYTHON_PACKAGES).part" && \
	/usr/bin/python3 -m pip install -q --root-user-action ignore --target "$(PYTHON_PACKAGES).part" \
	  openai==3.49.0 anthropic==2.8.0 requests==2.34.2 websockets==17.4 && \
	mv "$(PYTHON_PACKAGES).part" "$(PYTHON_PACKAGES)"; }

WEBHOOK_VERIFIER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/standardwebhooks
INSTALL_WEBHOOK_VERIFIER = { rm -rf "$(WEBHOOK_VERIFIER).part" && \
	/usr/bin/python3 -m pip install -q --root-user-action ignore --target "$(WEBHOOK_VERIFIER).part" standardwebhooks==1.1.0 && \
	mv "$(WEBHOOK_VERIFIER).part" "$(WEBHOOK_VERIFIER)"; }

MCP_CLIENT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/mcp
INSTALL_MCP_CLIENT = { rm -rf "$(MCP_CLIENT).part" && \
	/usr/bin/python3 -m pip install -q --root-user-action ignore --target "$(MCP_CLIENT).part" mcp==2.3.0 && \
	mv "$(MCP_CLIENT).part" "$(MCP_CLIENT)"; }

AGENT_SANDBOX := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/agent-sandbox
INSTALL_AGENT_SANDBOX = { rm -rf "$(AGENT_SANDBOX).part" && \
	/usr/bin/python3 -m pip install -q --root-user-action ignore --target "$(AGENT_SANDBOX).part" \
	  'k8s-agent-sandbox[grpc]==1.0.8' grpcio-tools==1.85.1 && \
	mv "$(AGENT_SANDBOX).part" "$(AGENT_SANDBOX)"; }

OPENAPI := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/openapi
INSTALL_OPENAPI = { rm -rf "$(OPENAPI).part" && \
	/usr/bin/python3 -m pip install -q --root-user-action ignore --target "$(OPENAPI).part" \
	  openapi-spec-validator==0.9.0 openapi-python-client==0.29.1 && \
	mv "$(OPENAPI).part" "$(OPENAPI)"; }

OPENAPI_TYPESCRIPT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/openapi-typescript
INSTALL_OPENAPI_TYPESCRIPT = { rm -rf "$(OPENAPI_TYPESCRIPT).part" && \
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$(OPENAPI_TYPESCRIPT).part" \
	  openapi-typescript@7.13.0 typescript@5.9.3 openapi-fetch@0.17.0 && \
	mv "$(OPENAPI_TYPESCRIPT).part" "$(OPENAPI_TYPESCRIPT)"; }

# It needs a newer Node.js than many systems have, which is a package too.
MCP_INSPECTOR := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/inspector
NODE_PACKAGE := node-linux-$(if $(filter aarch64,$(shell uname -m)),arm64,x64)@24.21.0
INSTALL_MCP_INSPECTOR = { rm -rf "$(MCP_INSPECTOR).part" && \
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$(MCP_INSPECTOR).part" @modelcontextprotocol/inspector@2.12.0 $(NODE_PACKAGE) && \
	mv "$(MCP_INSPECTOR).part" "$(MCP_INSPECTOR)"; }

# Its program comes in a package of its own: none of their scripts has to run.
CLAUDE_CODE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbar-tests/claude
INSTALL_CLAUDE_CODE = { rm -rf "$(CLAUDE_CODE).part" && \
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$(CLAUDE_CODE).part" @anthropic-ai/claude-code@2.1.325 && \
	mv "$(CLAUDE_CODE).part" "$(CLAUDE_CODE)"; }

test-build: test-needs
	cargo test --locked --workspace --no-run

test: test-build
	tests/stage "tests" tests/run
	$(MAKE) test-user
	tests/stage "examples in documentation" $(MAKE) test-docs
	@command -v go >/dev/null || echo "not run: make test-kubernetes: Go, which builds the cluster, is not installed"

# What the cluster is made of, ahead of its tests.
kubernetes-needs:
	@if [ -z "$$KUBECONFIG" ] && command -v go >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  tests/cluster/cluster needs --gvisor && tests/cluster/machine; fi

test-kubernetes: test-needs
	@if [ -z "$$KUBECONFIG" ] && ! command -v go >/dev/null; then \
	  echo "not run: test-kubernetes: Go, which builds the cluster, is not installed"; \
	elif [ -z "$$KUBECONFIG" ] && [ "$$(id -u)" != 0 ]; then \
	  echo "not run: test-kubernetes: a cluster is made by root"; \
	else tests/cluster/tests $(TEST); fi

# The provider suite and the attacks once more as somebody with no privilege at all.
test-user: test-build
	@if [ "$$(id -u)" != 0 ]; then echo "not run: tests as another user: this is an ordinary user already"; \
	else tests/stage "as an ordinary user" tests/run --as-user --variant "as an ordinary user" provider-local/suite sandbar/attacks; fi

# What makes a difference only when it is done often or for long.
SOAK := "sandbar/e2e crash::" "sandbar/e2e night::" "sandbar/e2e lifecycle::" "sandbar/e2e scale::" "sandbar/e2e workspaces::" "gateway/suite llm::storm::"
soak: test-build
	SANDBAR_SOAK=1 tests/run $(SOAK)
	@if [ -n "$$KUBECONFIG" ] || { command -v go >/dev/null && [ "$$(id -u)" = 0 ]; }; then \
	  SANDBAR_SOAK=1 tests/cluster/tests "sandbar/e2e kubernetes::killed::" "sandbar/e2e workspaces::"; \
	else echo "not run: soak on a cluster: it needs Go and root, or KUBECONFIG"; fi
	$(MAKE) fuzz

stress: test-build
	tests/stress

# Only the SDKs have any. All packages are named, because a selection has other features and is compiled anew.
test-docs: build-needs
	cargo test --locked --doc --workspace

attacks: test-needs
	tests/run "sandbar/attacks $(ATTACK)" $(if $(ATTACK),,"sandbar/e2e disaster::")
	@[ "$$(id -u)" != 0 ] || tests/run --as-user --variant "as an ordinary user" "sandbar/attacks $(ATTACK)"

lint: format deny
	cargo clippy --locked --workspace --all-targets -- -D warnings

format:
	cargo fmt --all --check

deny: build-needs
	$(call need,python3,python3)
	@if command -v cargo-deny >/dev/null; then cargo deny --offline check bans licenses sources; else python3 .ci/deny.py; fi

FUZZ_SECONDS := 60
fuzz: build-needs
	BOLERO_RANDOM_TEST_TIME_MS=$(FUZZ_SECONDS)000 cargo test --locked --workspace --lib --bins fuzz_

corpus: test-needs
	tests/run "provider-local/suite corpus::"

bench-needs: build-needs
	$(call need,bwrap,bubblewrap)
	$(call need,python3,python3)
	$(call need,unshare,util-linux)
	$(call wish,runc,runc)
	$(call wish,runsc,runsc)
	$(call wish,mkfs.btrfs,btrfs-progs)
	$(call wish,mkfs.xfs,xfsprogs)
	$(call wish,tinyproxy,tinyproxy)
	$(call wish,squid,squid)
	$(call wish,mitmdump,mitmproxy)

# Only the bench has use for the load program.
bench: bench-needs dist
	cargo build --profile dist --locked -p sandbar-gateway --example load
	python3 bench/run.py $(DIST)

bench-kubernetes: bench-needs dist
	cargo build --profile dist --locked -p agent-sandbox --example claims
	python3 bench/kubernetes.py $(DIST)
