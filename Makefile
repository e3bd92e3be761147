# Everything that is done with the tree. Each target can be run alone and says what it lacks.

SHELL       := /bin/bash -eu -o pipefail
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME    ?= 10s
PREFIX      ?= /usr/local
# Patterns of the tests that a suite runs and leaves out.
SCENARIOS   ?= .
SKIP        ?= ^$$
SOAK        ?= 60s

# One compiler configuration for programs, suites and linters, so that each library is compiled
# once. The race detector has its own.
export CGO_ENABLED := 0
export GOFLAGS     := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

# e2e PARALLEL TIMEOUT PACKAGES: end-to-end tests of the module test.
e2e = go test -C test -json -tags e2e -count=1 -p 1 -parallel $(1) -timeout $(2) \
	-run '$(SCENARIOS)' -skip '$(SKIP)' $(3)

# count NAME turns the output of "go test -json" into a report. RESULTS, a folder, gets the
# numbers of each suite in a file of its name.
count = bin/count -name $(1) $(if $(RESULTS),-to $(RESULTS)/$(1))

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z0-9-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :) FORCE

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | awk -F'\t' '{ printf "  %-22s %s\n", $$1, $$2 }'

build: ## build the programs into bin/, static, with their version; prints what each is for, and its size
	hack/build.sh

failpoints: # bin/kuryr-failpoints, which kills itself at the failpoint that it is told
	hack/build.sh kuryr-failpoints

docker-plugin: build ## build bin/docker-plugin, which docker plugin create takes
	hack/docker-plugin.sh

images: build ## write bin/images/kuryr.tar, the image for Kubernetes, made of static programs alone (no engine needed)
	hack/images.sh

kurma-images: build ## write the plugin images of Kurma's networks to bin/images, as ACI and as OCI archive (no engine needed; Debian's CNI plugins)
	hack/deps.sh kurma
	hack/kurma-images.sh

man: build ## write the man pages to man/
	mkdir -p man
	bin/kuryr man man

# Packages with concurrency of their own, whose tests "make test" runs with the race detector.
# "make race" does that for the whole tree. kube/raven, sdn/neutron and datapath/router take too
# long with it; kube/proxy and kube/agent/claim need client-go, which would be compiled twice.
RACE := ./bind ./datapath/lb ./docker ./internal/idlegate ./internal/keymutex ./docker/publish/portproxy \
	./internal/reconcile ./kube/agent ./kurma/plugin ./kurma/pod ./sdn/engine ./sdn/local ./sdn/rpc

# Test functions in files with the build tag kubernetes.
TAGGED = $(shell grep -l '^//go:build.* kubernetes' cmd/kuryr/*_test.go | \
	xargs grep -oh '^func Test[[:alnum:]_]*' | cut -c6- | paste -sd'|')

# Tests of faults that are not fixed yet. They are run by themselves and must fail.
KNOWN          := $(CURDIR)/test/known-failures
KNOWN_TESTS    := ^($(shell awk '/^[a-z]/ { print $$3 }' $(KNOWN) | sort -u | paste -sd'|'))$$
UNLISTED       := -skip '$(KNOWN_TESTS)'
KNOWN_PACKAGES := $(shell awk '/^[a-z]/ { print $$2 }' $(KNOWN) | sort -u)

test: need-gcc bin/count ## unit, property and kernel tests (kernel tests need root or user namespaces)
	{ rc=0; \
	CGO_ENABLED=1 go test -short -race -json -p 3 -timeout 20m $(UNLISTED) $(RACE) || rc=1; \
	go test -short -json -p 3 -timeout 20m $(UNLISTED) $$(go list ./... | grep -vxF "$$(go list $(RACE))") || rc=1; \
	go test -short -json -timeout 20m $(UNLISTED) -tags kubernetes -run '^($(TAGGED))$$' ./cmd/kuryr || rc=1; \
	go test -C test -json ./count ./parity ./e2e/kubelab || rc=1; \
	go test -C hack/tools/stylecheck -json ./... || rc=1; \
	[ -z "$(KNOWN_PACKAGES)" ] || go test -json -run '$(KNOWN_TESTS)' $(KNOWN_PACKAGES) || true; \
	exit $$rc; } | $(call count,test) -known $(KNOWN)

race: need-gcc bin/count ## the tests of the whole tree with the race detector, long ones included
	{ rc=0; \
	CGO_ENABLED=1 go test -race -json -timeout 40m $(UNLISTED) -run "$(SCENARIOS)" ./... || rc=1; \
	CGO_ENABLED=1 go test -race -json $(UNLISTED) -tags kubernetes -run '^($(TAGGED))$$' ./cmd/kuryr || rc=1; \
	exit $$rc; } | $(call count,race)

lint: ## gofmt, vet, staticcheck, golangci-lint, freshness of what is generated (the tools are built once into ~/.cache/kuryr)
	hack/lint.sh

lint-debt: ## lower the entries of .lint-debt to what is left
	go run -C hack/tools/stylecheck . -write

deps-outdated: ## list the direct modules that are behind their newest served version (the Go module proxy)
	hack/outdated.sh

vuln: ## known vulnerabilities that programs and suites reach (govulncheck; says where its database is unreachable)
	hack/vuln.sh

generate: ## make the deep copies of kube/api/v1 and the CRDs from its types
	hack/generate.sh

# The scenarios of tier 2.
DOCKER_CORE := ^Test(Flow|Objects|Isolation|Spoofing|NetworkOptions|EndpointOptions|AddressesAsked|Publish|$\
PublishedPortsAreKept|Restarts|Commands|NothingIsLeft|FortyAtOnce|Swarm|ManagedPlugin|ForgottenWhileAway|$\
EngineKilled|TwoProcesses|Upgrade)$$

e2e-docker: need-root docker-plugin bin/count ## scenarios with a real Docker engine on private hosts (root; installs docker.io)
	hack/deps.sh e2e cni
	$(call e2e,4,30m,./e2e/privatehost ./e2e/docker) | $(call count,e2e-docker)

e2e-docker-29: need-root docker-plugin bin/count ## the same with Docker 29, which is built from source once (root)
	hack/deps.sh e2e
	engine=$$(hack/dockerd.sh) && export KURYR_E2E_DOCKERD=$$engine && \
		$(call e2e,4,30m,./e2e/privatehost ./e2e/docker) | $(call count,e2e-docker-29)

e2e-sdn: SCENARIOS = TwoProcesses|Flow$$|Restarts
e2e-sdn: need-root build bin/count ## the SDN and Docker's driver as two processes, and scenarios of e2e-docker on such hosts (root)
	hack/deps.sh e2e
	export KURYR_E2E_PROVIDER=sdn && $(call e2e,4,20m,./e2e/docker) | $(call count,e2e-sdn)

e2e-docker-neutron: need-root build bin/count ## the scenarios of e2e-docker on a real Neutron (root; installs it)
	hack/deps.sh e2e neutron
	export KURYR_E2E_PROVIDER=neutron && $(call e2e,2,60m,./e2e/docker) | $(call count,e2e-docker-neutron)

e2e-neutron: need-root docker-plugin kurma-images failpoints bin/count ## scenarios on a real Neutron, OVN and Octavia, with hosts of Docker and Open vSwitch (root; installs them)
	hack/deps.sh neutron
	$(call e2e,2,60m,./e2e/neutronlab ./e2e/neutron) | $(call count,e2e-neutron)

e2e-cni: need-root build failpoints bin/count ## podman, containerd and libcni (which is cnitool) on kuryr node, on private hosts (root; installs them)
	hack/deps.sh cni
	$(call e2e,4,20m,./e2e/cni) | $(call count,e2e-cni)

e2e-kurma: need-root kurma-images failpoints bin/count ## pods of crun, runc and podman on Kurma's networks, on private hosts (root; installs them)
	$(call e2e,3,20m,./e2e/kurma) | $(call count,e2e-kurma)

e2e-openstack: build bin/count ## Debian's openstack command and gophercloud against kuryr sdn (installs the command as root)
	hack/deps.sh openstack
	$(call e2e,4,20m,./e2e/openstack) | $(call count,e2e-openstack)

gophercloud: build bin/count ## gophercloud's acceptance tests against kuryr sdn; see test/acceptance/list
	$(call e2e,1,12m,./acceptance) | $(call count,gophercloud)

# The Kubernetes suites have PROGRAMS, the cluster, and where they need them UPSTREAM, its own tests.
kubernetes = programs=$$(hack/kubernetes.sh) && tests=$$(hack/kubernetes.sh upstream) && \
	export KURYR_E2E_KUBERNETES=$$programs KURYR_E2E_UPSTREAM=$$tests

e2e-kubernetes: need-root build failpoints bin/talk bin/count ## a real Kubernetes, built from source once, whose pods are on Kuryr's networks (root)
	hack/deps.sh kubernetes upstream
	$(kubernetes) && $(call e2e,2,60m,./e2e/kubernetes) | $(call count,e2e-kubernetes)

e2e-kubernetes-neutron: SCENARIOS = ^TestNeutron
e2e-kubernetes-neutron: need-root build failpoints bin/talk bin/count ## the same on two nodes that are compute hosts of a real Neutron and OVN (root; installs them)
	hack/deps.sh kubernetes upstream neutron
	$(kubernetes) && $(call e2e,1,60m,./e2e/kubernetes) | $(call count,e2e-kubernetes-neutron)

helm: build bin/count ## render and lint the Helm chart with Helm itself, and hold it against "kuryr install kubernetes" (the Go module proxy, once)
	KURYR=$(CURDIR)/bin/kuryr go test -C test/helm -json -count=1 -run '$(SCENARIOS)' . | $(call count,helm)

# The folders whose own tests kill at failpoints; without the tag those tests are not there.
KILLS := ./kube/agent/claim ./kube/agent/leg ./docker ./bind ./datapath/router ./datapath/firewall ./datapath/lb ./sdn/local ./sdn/neutron ./sdn/neutronapi ./kurma/netplugin ./kurma/pod ./kurma/plugin ./kurma/image

crash: SCENARIOS = Failpoints|Crash|Killed
crash: need-root bin/count ## kill Kuryr at every failpoint and compare store and kernel; KURYR_CRASH_VISITS=1 kills at the first visit only (root)
	hack/deps.sh e2e
	hack/build.sh kuryr-crash
	{ rc=0; \
	go test -C test -json -tags e2e,failpoints -count=1 -parallel 3 -timeout 30m -run '$(SCENARIOS)' ./e2e/crash || rc=1; \
	go test -json -tags failpoints -count=1 -parallel 3 -timeout 30m -run '$(SCENARIOS)' -skip '^Test(Crash|Killed)Child$$' $(KILLS) || rc=1; \
	exit $$rc; } | $(call count,crash)

soak: need-root build bin/count ## random kills of Kuryr and Docker among forty users, for SOAK (60s); KURYR_SOAK_SEED repeats a run (root)
	hack/deps.sh e2e
	export SOAK=$(SOAK) && $(call e2e,4,3h,./e2e/soak) | $(call count,soak)

faults: need-root build bin/count ## slow, full and failing disks, a full /run, floods, daemons in the wrong order (root)
	hack/deps.sh e2e
	$(call e2e,6,20m,./e2e/faults) | $(call count,faults)

bench: need-root build ## measure against the raw kernel and Docker's bridge, as ratios (root)
	hack/deps.sh e2e
	go build -C test -o ../bin/ ./bench ./bench/traffic
	bin/bench

# A second engine to measure on: the one that hack/dockerd.sh has built, if it has.
DOCKERD ?= $(lastword $(filter-out %.lock,$(foreach f,$(wildcard $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kuryr/dockerd-29-v*),$(if $(findstring .new.,$(f)),,$(f)))))

bench-docker: need-root build ## measure the Docker front end: containers, by method, published ports, a full store, the start, memory (root)
	hack/deps.sh e2e
	go build -C test -o ../bin/ ./bench ./bench/traffic
	bin/bench -only containers,memory,methods,published,publish,scale,start $(if $(DOCKERD),-dockerd $(DOCKERD))

bench-neutron: need-root build ## measure on a real Neutron: its calls, Kuryr's own time, CPU and memory (root)
	hack/deps.sh neutron
	go build -C test -o ../bin/ ./bench
	bin/bench -only neutron -rounds 20

bench-kurma: need-root kurma-images ## measure a pod on a network of Kurma's, on crun and runc, against executing its CNI plugin directly (root)
	go build -C test -o ../bin/ ./bench
	bin/bench -only kurma -rounds 20

bench-sdn: need-root build ## measure the embedded SDN as a Neutron API, and what security groups cost (root)
	go build -C test -o ../bin/ ./bench
	bin/bench -only sdn,filter

# Pods of the cluster that Raven is measured on.
PODS ?= 10000

bench-kubernetes: need-root build ## measure CNI against Debian's bridge plugin and raw netlink, and Raven with PODS (10000) pods on a real API server (root)
	hack/deps.sh cni kubernetes
	go build -C test -o ../bin/ ./bench
	programs=$$(hack/kubernetes.sh) && kwok=$$(hack/kwok.sh) && \
		KURYR_E2E_KUBERNETES=$$programs KURYR_BENCH_KWOK=$$kwok bin/bench -only cni,warm,raven -rounds 20 -pods $(PODS)

# Numbers of Services that there are, one after the other.
SIZES ?= 1000,10000,30000

bench-services: need-root build ## measure Services on a node, and by the embedded SDN, against kube-proxy in nftables mode, with SIZES (1000,10000,30000) of them on a real API server (root)
	hack/deps.sh kubernetes
	go build -C test -o ../bin/ ./bench
	programs=$$(hack/kubernetes.sh) && KURYR_E2E_KUBERNETES=$$programs bin/bench -only services,balancers,more -sizes $(SIZES)

fuzz: ## run every fuzz target for FUZZTIME (10s; or 2000x, so many inputs)
	hack/fuzz.sh $(FUZZTIME)

ci-full: need-root ## every shard of test/shards that has not passed on this commit yet; hours, can be interrupted (root)
	hack/ci.sh full

labs: ## build bin/privatehost, bin/neutronlab and bin/kubelab, which start engines in namespaces
	go build -C test -o ../bin/ ./e2e/cmd/privatehost ./e2e/cmd/neutronlab ./e2e/cmd/kubelab

demo: need-root ## two containers talking on a Kuryr network (root)
	hack/demo.sh

demo-clean: need-root ## remove what the demo made (root)
	hack/demo.sh --clean

deps: ## install what the suites need from Debian (root)
	hack/deps.sh build e2e

install: build ## install kuryr, its manual, completions, hooks and systemd units (DESTDIR, PREFIX)
	install -D -m 755 bin/kuryr $(DESTDIR)$(PREFIX)/bin/kuryr
	install -D -m 755 bin/kuryr-kubernetes $(DESTDIR)$(PREFIX)/bin/kuryr-kubernetes
	install -D -m 755 bin/kuryr-vif $(DESTDIR)/usr/libexec/kuryr/kuryr-vif
	for type in bridge ovs tap midonet unbound; do ln -sf kuryr-vif $(DESTDIR)/usr/libexec/kuryr/$$type; done
	install -D -m 755 bin/kuryr-oci-hook $(DESTDIR)/usr/libexec/kuryr/kuryr-oci-hook
	install -D -m 755 bin/kuryr-cni $(DESTDIR)/opt/cni/bin/kuryr
	install -D -m 755 bin/kuryr-cni-api $(DESTDIR)/opt/cni/bin/kuryr-cni-api
	install -D -m 755 bin/kuryr-netavark $(DESTDIR)/usr/libexec/netavark/kuryr
	install -d $(DESTDIR)/usr/libexec/kubernetes/kubelet-plugins/net/exec
	ln -sf /opt/cni/bin/kuryr $(DESTDIR)/usr/libexec/kubernetes/kubelet-plugins/net/exec/kuryr
	bin/kuryr man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	bin/kuryr completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/kuryr
	bin/kuryr completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_kuryr
	bin/kuryr completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/kuryr.fish
	install -d $(DESTDIR)$(PREFIX)/share/kuryr/hooks.d $(DESTDIR)/etc/systemd/system
	install -m 644 deploy/oci/hooks.d/*.json $(DESTDIR)$(PREFIX)/share/kuryr/hooks.d
	for unit in kuryr kuryr-sdn kuryr-node kuryr-kurma; do \
		sed 's,/usr/local/bin/,$(PREFIX)/bin/,' deploy/systemd/$$unit.service >$(DESTDIR)/etc/systemd/system/$$unit.service; done

bin/count: FORCE
	@go build -C test -o ../bin/count ./count

bin/talk: FORCE
	@go build -C test -o ../bin/talk ./e2e/talk

FORCE:

clean: ## remove what was built
	rm -rf bin man

need-root:
	@[ "$$(id -u)" = 0 ] || { echo "this target needs root: it makes network namespaces and starts container engines in them" >&2; exit 1; }

need-gcc:
	@command -v gcc >/dev/null || { echo "the race detector needs a C compiler: hack/deps.sh build" >&2; exit 1; }
