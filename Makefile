# make demo and make test do all set-up by themselves; `make help` lists the rest.

PREFIX ?= /usr/local
CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# PROGRAM:PACKAGE, as Debian names them.
RUN_NEEDS  := bash:bash bc:bc cc:gcc
TEST_WANTS := jq:jq file:file python3:python3 git:git ps:procps awk:mawk setpriv:util-linux stress-ng:stress-ng strace:strace valgrind:valgrind zsh:zsh fish:fish newuidmap:uidmap \
	ip:iproute2 openssl:openssl curl:curl dig:bind9-dnsutils ping:iputils-ping nmap:nmap traceroute:traceroute gobuster:gobuster hydra:hydra sqlmap:sqlmap \
	node:nodejs wget:wget pip:python3-pip keytool:default-jre-headless gpg:gnupg ssh-agent:openssh-client socat:socat \
	/usr/sbin/nginx:nginx-light pg_createcluster:postgresql

# Needed in addition where other kernels are booted; lsattr comes with mkfs.ext4, which only root's PATH has.
KERNEL_NEEDS := qemu-system-x86_64:qemu-system-x86 lsattr:e2fsprogs strip:binutils ip:iproute2 \
	jq:jq file:file python3:python3 git:git ps:procps awk:mawk setpriv:util-linux zsh:zsh fish:fish \
	curl:curl dig:bind9-dnsutils ping:iputils-ping nmap:nmap openssl:openssl traceroute:traceroute
SUITE_NEEDS  := dpkg-source:dpkg-dev git:git setpriv:util-linux patch:patch
SYSTEMD_NEEDS := qemu-system-x86_64:qemu-system-x86 lsattr:e2fsprogs strip:binutils
ARM_NEEDS     := qemu-system-aarch64:qemu-system-arm aarch64-linux-gnu-g++:g++-aarch64-linux-gnu debootstrap:debootstrap lsattr:e2fsprogs
CONTAINER_NEEDS := podman:podman runc:runc debootstrap:debootstrap newuidmap:uidmap setpriv:util-linux jq:jq
CLIENT_NEEDS := node:nodejs npm:npm gcc:gcc make:make git:git python3:python3 javac:default-jdk-headless curl:curl setpriv:util-linux \
	mvn:maven php:php-cli composer:composer Rscript:r-base-core
# Plugins of Maven, which have no program.
MAVEN_PLUGINS := libmaven-compiler-plugin-java libmaven-resources-plugin-java junit5
SCALE_NEEDS   := haproxy:haproxy openssl:openssl ip:iproute2 unshare:util-linux python3:python3 podman:podman runc:runc debootstrap:debootstrap curl:curl
NETWORK_NEEDS := ip:iproute2 setpriv:util-linux openssl:openssl python3:python3 pip:python3-pip node:nodejs npm:npm git:git curl:curl wget:wget \
	go:golang-go ssh:openssh-client /usr/sbin/sshd:openssh-server psql:postgresql-client pg_createcluster:postgresql gpg:gnupg chromium:chromium \
	certutil:libnss3-tools gnutls-cli:gnutls-bin javac:default-jdk-headless
DIST_NEEDS    := python3:python3 strip:binutils xz:xz-utils
PACKAGE_NEEDS := debootstrap:debootstrap node:nodejs npm:npm python3:python3 setpriv:util-linux ip:iproute2 podman:podman runc:runc newuidmap:uidmap \
	makepkg:makepkg pacman:pacman-package-manager bsdtar:libarchive-tools nix-instantiate:nix-bin ruby:ruby lintian:lintian rpmlint:rpmlint
KERNELS      ?= 6.1 6.12

.PHONY: check-arm check-crates reproduce test-arm test-thorough test-all test-clients test-conformance test-containers test-examples test-kernels test-network test-packages test-scale test-suites test-systemd check-oldest-compiler deny
.PHONY: bench-report capacity compare help demo story test fuzz soak build dist install uninstall clean setup

help:
	@echo 'make demo      set up, build in minutes, and run a real MCP session'
	@echo 'make story     an afternoon of an agent: the session that docs/session.md shows, played again'
	@echo 'make test      set up and run the tests that every change must pass'
	@echo 'make test-thorough  the rest for this kernel: storms, load, random system calls, the escape corpus as root'
	@echo 'make test-all  these tests, on other kernels too, and the suites of bash, bc, coreutils and git'
	@echo 'make test-kernels  the tests on Debian kernels $(KERNELS), in virtual machines (Debian 12)'
	@echo 'make test-systemd  the tests of scopes, in a virtual machine that boots systemd (root; Debian 12)'
	@echo 'make test-containers  every function in containers of podman, by root and rootless (root; Debian)'
	@echo 'make test-clients  a first day with real clients of npm, and what their models are shown (needs a network)'
	@echo 'make test-network  real clients and servers, each client bare and in a cell (root; Debian; needs npm and pip; servers are installed and not started)'
	@echo 'make test-conformance  the official MCP conformance suite and clients, both eras, over HTTP, and schemathesis (needs npm, pip and a network)'
	@echo 'make test-scale  three servers behind haproxy, one killed and one ended under 10,000 calls of 64 clients, the manifests for Kubernetes, and the settings of their pods in podman (root; Debian; needs pip)'
	@echo 'make capacity PROGRAM=PATH  what one processor holds, and the machines for a day of 1,000 agents (root); CAPACITY=… for its options'
	@echo 'make test-examples EXAMPLES=DIR  the example projects of mcp-bash-framework, where DIR has them: compared, and through real clients'
	@echo 'make test-suites   the suites of other people, in a cell (Debian)'
	@echo 'make fuzz      each fuzz target for 60 s (FUZZ=…) under libFuzzer; needs rustup for its nightly compiler'
	@echo 'make soak      100,000 fresh cells and 34,000 calls of a session in a row (SOAK=calls), 10,000 calls of 64 clients over HTTP, and what the server holds'
	@echo 'make check-arm  compile it for aarch64 (root; Debian)'
	@echo 'make test-arm  the tests on kernels $(KERNELS) of an emulated machine for aarch64 (root; Debian 12)'
	@echo 'make compare PROGRAM=PATH  the escape corpus against every sandbox installed here, and the table of docs/comparison.md'
	@echo 'make bench-report PROGRAM=PATH  cold runs, calls at once and cells a second beside each sandbox in PATH: $(TARGET)/bench-report'
	@echo 'make deny      licences, sources and known faults of the dependencies (cargo-deny)'
	@echo 'make check-crates  pack each crate as for the registry of Cargo, and build it from that'
	@echo 'make reproduce  build a release in two directories, and compare the bytes (two release builds)'
	@echo 'make build     the release binary: $(TARGET)/release/cofferdam'
	@echo 'make dist      the packages of a release in target/dist: archive, deb, rpm, wheel, npm, MCPB, image, sums, parts, its selftest'
	@echo 'make test-packages  install, use and remove each of them in a clean place (root; Debian)'
	@echo 'make install   copy it, its manual pages and completions below $(DESTDIR)$(PREFIX) (PREFIX=… to change)'
	@echo 'make clean     remove what was built'

setup:
	@scripts/setup $(RUN_NEEDS)

# A release build takes minutes longer, so a fresh clone gets a program that is built sooner and runs slower.
DEMO := $(if $(wildcard $(TARGET)/release/cofferdam),release,demo)
demo: setup
	@test $(DEMO) = release || echo 'Building for a first look, some four minutes on two processors. make build makes the fast program.'
	@$(CARGO) build --profile $(DEMO) --locked -p cofferdam -p cofferdam-demo --bins
	@$(TARGET)/$(DEMO)/demo $(TARGET)/$(DEMO)/cofferdam

# What docs/session.md shows; git is needed too.
story: setup
	@scripts/setup git:git
	$(CARGO) build --release --locked --bin cofferdam --example story
	$(TARGET)/release/examples/story $(TARGET)/release/cofferdam

test:
	@scripts/setup $(RUN_NEEDS) --wanted $(TEST_WANTS)
	@CARGO='$(CARGO)' scripts/test --workspace --locked --no-fail-fast

# What `make test` leaves out because it takes minutes.
test-thorough:
	@scripts/setup $(RUN_NEEDS) --wanted $(TEST_WANTS)
	@CARGO='$(CARGO)' scripts/test --workspace --locked --no-fail-fast --test load
	@COFFERDAM_TESTS=all CARGO='$(CARGO)' scripts/test --workspace --locked --no-fail-fast --test fuzz_cell
	@COFFERDAM_TESTS=thorough CARGO='$(CARGO)' scripts/test --workspace --locked --no-fail-fast --test sessions --test walls --test grants

test-kernels:
	@scripts/setup $(RUN_NEEDS) $(KERNEL_NEEDS)
	tests/kernels/run $(KERNELS)

test-suites:
	@scripts/setup $(RUN_NEEDS) $(SUITE_NEEDS)
	tests/suites/run

# Debian has the module of virtual environments in a package without a program.
test-clients:
	@scripts/setup $(RUN_NEEDS) $(CLIENT_NEEDS)
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || apt-get install -y -qq python3-venv
	@dpkg-query -s $(MAVEN_PLUGINS) >/dev/null 2>&1 || apt-get install -y -qq $(MAVEN_PLUGINS)
	tests/clients/run $(STORY)

test-network:
	@scripts/setup $(RUN_NEEDS) $(NETWORK_NEEDS)
	tests/network/clients/run $(CASE)

test-containers:
	@scripts/setup $(RUN_NEEDS) $(CONTAINER_NEEDS)
	tests/containers/run

test-conformance:
	@scripts/setup $(RUN_NEEDS) node:nodejs npm:npm python3:python3 openssl:openssl curl:curl
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || apt-get install -y -qq python3-venv
	tests/conformance/run
	tests/conformance/routes
	tests/conformance/clients
	tests/conformance/projects

test-scale:
	@scripts/setup $(RUN_NEEDS) $(SCALE_NEEDS)
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || apt-get install -y -qq python3-venv
	tests/scale/manifests
	tests/scale/queues
	tests/scale/run
	tests/scale/pod

# Needs root, because only root can read the memory of cells.
capacity:
	@test -x $(PROGRAM) || { echo '$(PROGRAM) is missing: run make build, or set PROGRAM'; exit 1; }
	@scripts/setup $(RUN_NEEDS) python3:python3
	tests/scale/capacity --program $(PROGRAM) $(CAPACITY)

# The examples are other people's and not in this repository: DIR is the folder `examples` of a copy of that framework.
test-examples:
	@test -d "$(EXAMPLES)/00-hello-tool" || { echo 'EXAMPLES names the folder of the examples of mcp-bash-framework 1.3.0'; exit 1; }
	@scripts/setup $(RUN_NEEDS) jq:jq node:nodejs npm:npm python3:python3
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || apt-get install -y -qq python3-venv
	MCPBASH_EXAMPLES="$(abspath $(EXAMPLES))" $(CARGO) test --workspace --locked --test products -- --ignored projects::examples::
	MCPBASH_EXAMPLES="$(abspath $(EXAMPLES))" tests/conformance/projects

test-systemd:
	@scripts/setup $(RUN_NEEDS) $(SYSTEMD_NEEDS)
	tests/systemd/run $(KERNEL) $(SUITE)

test-all: test test-thorough test-kernels test-suites

FUZZ ?= 60
fuzz: setup
	scripts/fuzz $(FUZZ)

# The oldest compiler that Cargo.toml names, where rustup has it.
OLDEST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
check-oldest-compiler:
	$(CARGO) +$(OLDEST) check --workspace --all-targets --locked

# Compiles everything but the tests for aarch64, with the compiler in use or one of Debian's (root; Debian for amd64).
check-arm:
	@scripts/setup aarch64-linux-gnu-g++:g++-aarch64-linux-gnu
	scripts/arm-cargo check --workspace --locked

# The same as test-kernels, on an emulated machine for aarch64.
test-arm:
	@scripts/setup $(RUN_NEEDS) $(ARM_NEEDS)
	tests/kernels/run --arm $(KERNELS)

# Ratios in one run: on a machine that does nothing else, and beside the sandboxes that are in PATH.
bench-report:
	@test -x $(PROGRAM) || { echo '$(PROGRAM) is missing: run make build, or set PROGRAM'; exit 1; }
	@scripts/setup $(RUN_NEEDS) jq:jq gnuplot:gnuplot-nox
	benches/report $(PROGRAM) $(TARGET)/bench-report

# As an ordinary user, on a machine that is thrown away: attacks that are not held do what they say.
PROGRAM ?= $(TARGET)/release/cofferdam
compare:
	scripts/compare $(PROGRAM) $(TARGETS)

# Licences, sources, duplicates and known faults of the dependencies; needs cargo-deny.
deny:
	$(CARGO) deny --locked check

# Packs each crate of the program as for Cargo's registry, and builds it from that alone.
check-crates:
	$(CARGO) package --workspace --locked --exclude cofferdam-demo

# Builds a release twice, in two directories, and compares the bytes.
reproduce:
	@scripts/setup $(RUN_NEEDS) strip:binutils
	packaging/compare-builds

# Three of four calls have a fresh cell.
SOAK ?= 134000
SOAK_HTTP ?= 10000
soak: setup
	COFFERDAM_SOAK=$(SOAK) nice $(CARGO) test --release --locked --test load many -- --nocapture
	COFFERDAM_SOAK_HTTP=$(SOAK_HTTP) nice $(CARGO) test --release --locked --test http no_answer_is_lost

build: setup
	$(CARGO) build --release --locked

# cargo-deb, cargo-generate-rpm and cargo-cyclonedx are needed; without one of them it says how to get it.
dist:
	@scripts/setup $(RUN_NEEDS) $(DIST_NEEDS)
	packaging/dist

test-packages:
	@scripts/setup $(RUN_NEEDS) $(PACKAGE_NEEDS)
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || apt-get install -y -qq python3-venv
	tests/packages/run $(PART)

# Builds only where nothing was built, so that `make build && sudo make install` works for a root
# without Rust.
SHARE = $(DESTDIR)$(PREFIX)/share
BASH_COMPLETION = $(SHARE)/bash-completion/completions/cofferdam
ZSH_COMPLETION  = $(SHARE)/zsh/site-functions/_cofferdam
FISH_COMPLETION = $(SHARE)/fish/vendor_completions.d/cofferdam.fish
install:
	@test -x $(TARGET)/release/cofferdam || $(MAKE) build
	install -D -m 0755 $(TARGET)/release/cofferdam $(DESTDIR)$(PREFIX)/bin/cofferdam
	install -d $(SHARE)/man/man1 $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION))
	$(TARGET)/release/cofferdam man --out $(SHARE)/man/man1
	$(TARGET)/release/cofferdam completions bash > $(BASH_COMPLETION)
	$(TARGET)/release/cofferdam completions zsh > $(ZSH_COMPLETION)
	$(TARGET)/release/cofferdam completions fish > $(FISH_COMPLETION)

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/cofferdam $(SHARE)/man/man1/cofferdam.1 $(SHARE)/man/man1/cofferdam-*.1
	rm -f $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)

clean:
	$(CARGO) clean
