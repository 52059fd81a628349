# make run    builds and starts Sandbar, prints a link
# make test   installs what the tests need and runs them all
# make lint   format, clippy, dependency policy
# make bench  measures against peers on this machine

SHELL := /bin/bash
.DEFAULT_GOAL := help
TUPLE := $(shell rustc --print host-tuple 2>/dev/null)
RELEASE := target/$(TUPLE)/release/sandbar
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# A package is installed only when its program is missing, so that a second run needs no network.
define need
	@command -v $(1) >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq $(2); }
endef

.PHONY: help run build build-needs test test-needs test-user lint bench bench-needs

help:
	@sed -n 's/^# make/make/p' $(MAKEFILE_LIST)

build-needs:
	$(call need,cc,build-essential)

build: build-needs
	cargo build --release --locked -p sandbar

run: build
	$(RELEASE) up

# busybox makes the test image, setpriv becomes an ordinary user, unshare makes a host without user namespaces.
test-needs: build-needs
	@[ -e /bin/busybox ] || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq busybox-static; }
	$(call need,setpriv,util-linux)
	$(call need,python3,python3)
	$(call need,curl,curl)

test: test-needs
	cargo test --locked --workspace
	$(MAKE) test-user

# The provider suite once more as somebody with no privilege at all. The program is copied: the tree may be unreadable.
test-user: test-needs
	@set -e; if [ "$$(id -u)" != 0 ]; then echo "not run: provider suite as another user: this is an ordinary user already"; exit 0; fi; \
	suite=$$(cargo test --locked -p sandbar-provider-local --test suite --no-run --message-format=json 2>/dev/null \
	  | sed -n 's/.*"executable":"\([^"]*suite[^"]*\)".*/\1/p' | tail -n 1); \
	place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; chmod 755 "$$place"; mkdir -m 1777 "$$place/tmp"; \
	cp "$$suite" "$$place/suite"; chmod 755 "$$place/suite"; cd "$$place"; \
	echo "the provider suite as an ordinary user:"; \
	setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH="$$PATH" TMPDIR="$$place/tmp" "$$place/suite"

lint: build-needs
	$(call need,python3,python3)
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --offline check bans licenses sources; else python3 .ci/deny.py; fi

bench-needs: build-needs
	$(call need,bwrap,bubblewrap)
	$(call need,python3,python3)
	$(call need,unshare,util-linux)

bench: bench-needs build
	python3 bench/run.py $(RELEASE)
