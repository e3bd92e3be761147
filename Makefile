# Everything that is done with the tree. Each target can be run alone and says what it lacks.

SHELL       := /bin/bash -eu -o pipefail
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
FUZZTIME    ?= 10s
PREFIX      ?= /usr/local
E2E_TIMEOUT ?= 20m
SCENARIOS   ?= .
SOAK        ?= 60s

# One configuration of the compiler for all that is built, so that each library is compiled once: programs, suites, vet and linters. The race detector alone has its own.
export CGO_ENABLED := 0
export GOFLAGS     := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

# RESULTS, a folder, gets the numbers of each suite in a file of its name.
count = go run ./test/count -name $(1) $(if $(RESULTS),-to $(RESULTS)/$(1))

.DEFAULT_GOAL := help
.PHONY: help build failpoints docker-plugin images kurma-images man test lint generate e2e-docker e2e-docker-29 crash soak faults e2e-neutron e2e-octavia e2e-docker-neutron e2e-sdn e2e-cni e2e-openstack e2e-kurma e2e-kubernetes e2e-kubernetes-neutron e2e-services e2e-kubernetes-upstream helm bench bench-docker bench-neutron bench-sdn bench-kurma bench-kubernetes bench-services fuzz demo demo-clean install clean need-root need-gcc deps

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | awk -F'\t' '{ printf "  %-22s %s\n", $$1, $$2 }'

# kuryr-kubernetes is kuryr with the client libraries of Kubernetes, which would be half of kuryr.
build: ## build bin/kuryr, bin/kuryr-kubernetes and the small ones, static, with their version
	go build -ldflags '$(LDFLAGS)' -o bin/kuryr ./cmd/kuryr
	go build -tags kubernetes -ldflags '$(LDFLAGS)' -o bin/kuryr-kubernetes ./cmd/kuryr
	go build -ldflags '$(LDFLAGS)' -o bin/kuryr-vif ./cmd/kuryr-vif
	go build -ldflags '-s -w' -o bin/kuryr-cni ./cmd/kuryr-cni
	go build -ldflags '-s -w' -o bin/kuryr-cni-api ./cmd/kuryr-cni-api
	go build -ldflags '-s -w' -o bin/kuryr-oci-hook ./cmd/kuryr-oci-hook
	go build -ldflags '-s -w' -o bin/kuryr-netplugin ./cmd/kuryr-netplugin
	go build -ldflags '-s -w' -o bin/cni-netplugin ./cmd/cni-netplugin

failpoints: # bin/kuryr-failpoints, which dies where it is told to, and is whole by itself
	go build -tags failpoints,kubernetes -ldflags '$(LDFLAGS)' -o bin/kuryr-failpoints ./cmd/kuryr

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

# The tests that kuryr-kubernetes alone has: all of the files with its tag.
TAGGED = $(shell grep -l '^//go:build.* kubernetes' cmd/kuryr/*_test.go | xargs grep -oh '^func Test[[:alnum:]_]*' | cut -c6- | paste -sd'|')

test: need-gcc ## vet, unit and kernel tests with the race detector (kernel tests need root or user namespaces)
	go vet ./...
	go vet -tags kubernetes ./cmd/kuryr
	{ rc=0; CGO_ENABLED=1 go test -race -p 3 -json -timeout 30m -run "$(SCENARIOS)" ./... || rc=1; \
		CGO_ENABLED=1 go test -race -json -timeout 30m -tags kubernetes -run "^($(TAGGED))$$" ./cmd/kuryr || rc=1; exit $$rc; } | $(call count,test)

lint: ## gofmt, vet, staticcheck, golangci-lint, freshness of what is generated (the tools are built once into ~/.cache/kuryr)
	hack/lint.sh

generate: ## make the deep copies of kube/api/v1 and the CRDs anew from its types
	hack/generate.sh

e2e-docker: need-root docker-plugin ## scenarios with a real Docker engine on private hosts (root; installs docker.io)
	hack/deps.sh e2e
	go test -json -tags e2e -count=1 -parallel 4 -timeout $(E2E_TIMEOUT) -run "$(SCENARIOS)" ./test/e2e/privatehost ./test/e2e/docker | $(call count,e2e-docker)

e2e-docker-29: need-root docker-plugin ## the same and more with Docker 29, which is built from its source once (root)
	hack/deps.sh e2e
	engine=$$(hack/dockerd.sh) && KURYR_E2E_DOCKERD=$$engine go test -json -tags e2e -count=1 -parallel 4 -timeout $(E2E_TIMEOUT) \
		-run "$(SCENARIOS)" ./test/e2e/privatehost ./test/e2e/docker | $(call count,e2e-docker-29)

e2e-neutron: need-root docker-plugin kurma-images failpoints ## scenarios on a real Neutron and OVN, hosts with Docker and Open vSwitch; SCENARIOS chooses (root; installs them)
	hack/deps.sh neutron
	go test -json -tags e2e -count=1 -p 1 -parallel 2 -timeout 45m -run "$(SCENARIOS)" ./test/e2e/neutronlab ./test/e2e/neutron | $(call count,e2e-neutron)

e2e-octavia: SCENARIOS = ^TestOctavia$$
e2e-octavia: need-root docker-plugin ## load balancers on a real Octavia with OVN's provider and with amphora, beside the same Neutron (root; installs them)
	hack/deps.sh neutron
	go test -json -tags e2e -count=1 -timeout 60m -run '$(SCENARIOS)' ./test/e2e/neutron | $(call count,e2e-octavia)

e2e-sdn: SCENARIOS = TwoProcesses|Flow$$|Restarts
e2e-sdn: need-root build ## the SDN and Docker's driver as two processes, and scenarios of e2e-docker on such hosts (root)
	hack/deps.sh e2e
	KURYR_E2E_PROVIDER=sdn go test -json -tags e2e -count=1 -parallel 4 -timeout $(E2E_TIMEOUT) -run '$(SCENARIOS)' ./test/e2e/docker | $(call count,e2e-sdn)

e2e-docker-neutron: need-root build ## the scenarios of e2e-docker on a real Neutron, but for what it has not (root; installs it)
	hack/deps.sh e2e neutron
	KURYR_E2E_PROVIDER=neutron go test -json -tags e2e -count=1 -parallel 2 -timeout 60m -run "$(SCENARIOS)" ./test/e2e/docker | $(call count,e2e-docker-neutron)

e2e-cni: need-root build failpoints ## podman, containerd and libcni (which is cnitool) on kuryr node, on private hosts (root; installs them)
	hack/deps.sh cni
	go test -json -tags e2e -count=1 -parallel 4 -timeout $(E2E_TIMEOUT) -run "$(SCENARIOS)" ./test/e2e/cni | $(call count,e2e-cni)

e2e-kurma: need-root kurma-images failpoints ## pods of crun, runc and podman on Kurma's networks, by both plugin images, on private hosts (root; installs them)
	go test -json -tags e2e -count=1 -parallel 3 -timeout $(E2E_TIMEOUT) -run "$(SCENARIOS)" ./test/e2e/kurma | $(call count,e2e-kurma)

e2e-openstack: build ## Debian's openstack command and gophercloud against kuryr sdn; SCENARIOS chooses (installs the command as root)
	hack/deps.sh openstack
	go test -json -tags e2e -count=1 -timeout $(E2E_TIMEOUT) -run "$(SCENARIOS)" ./test/e2e/openstack | $(call count,e2e-openstack)

e2e-kubernetes: need-root build ## a real Kubernetes, built from its source once, whose nodes run pods on Kuryr's networks; SCENARIOS chooses (root)
	hack/deps.sh kubernetes
	programs=$$(hack/kubernetes.sh) && KURYR_E2E_KUBERNETES=$$programs go test -json -tags e2e -count=1 -parallel 2 -timeout $(E2E_TIMEOUT) \
		-run "$(SCENARIOS)" -skip '^Test(Neutron|Upstream|Services|ReferenceServices)' ./test/e2e/kubernetes | $(call count,e2e-kubernetes)

e2e-services: SCENARIOS = ^Test(Services|ReferenceServices)
e2e-services: need-root build failpoints ## Services of a cluster without kube-proxy, by packets, and the same tests with kube-proxy; SCENARIOS chooses (root)
	hack/deps.sh kubernetes
	go build -o bin/talk ./test/e2e/talk
	programs=$$(hack/kubernetes.sh) && KURYR_E2E_KUBERNETES=$$programs go test -json -tags e2e -count=1 -parallel 2 -timeout $(E2E_TIMEOUT) \
		-run '$(SCENARIOS)' ./test/e2e/kubernetes | $(call count,e2e-services)

e2e-kubernetes-neutron: SCENARIOS = ^TestNeutron
e2e-kubernetes-neutron: need-root build failpoints ## the same on two nodes that are compute hosts of a real Neutron and OVN; SCENARIOS chooses (root; installs them)
	hack/deps.sh kubernetes neutron
	go build -o bin/talk ./test/e2e/talk
	programs=$$(hack/kubernetes.sh) && KURYR_E2E_KUBERNETES=$$programs go test -json -tags e2e -count=1 -parallel 1 -timeout 45m \
		-run "$(SCENARIOS)" ./test/e2e/kubernetes | $(call count,e2e-kubernetes-neutron)

e2e-kubernetes-upstream: SCENARIOS = ^TestUpstream
e2e-kubernetes-upstream: need-root build ## Kubernetes' own tests of sig-network on a cluster without kube-proxy; KURYR_E2E_UPSTREAM_PROXY=1 is with it (root; builds them once)
	hack/deps.sh kubernetes upstream
	programs=$$(hack/kubernetes.sh) && tests=$$(hack/kubernetes.sh upstream) && KURYR_E2E_KUBERNETES=$$programs KURYR_E2E_UPSTREAM=$$tests \
		go test -json -tags e2e -count=1 -timeout 40m -run '$(SCENARIOS)' ./test/e2e/kubernetes | $(call count,e2e-kubernetes-upstream)

helm: build ## render and lint the Helm chart with Helm itself, and hold it against "kuryr install kubernetes" (the Go module proxy, once)
	KURYR=$(CURDIR)/bin/kuryr go test -C test/helm -json -count=1 -run "$(SCENARIOS)" . | $(call count,helm)

# The folders whose own tests kill at failpoints; without the tag those tests are not there.
KILLS := ./kube/node/claim ./kube/node/leg ./docker ./bind ./datapath/fabric ./datapath/host ./datapath/lb ./sdn/local ./sdn/nested ./sdn/restapi ./kurma/netplugin ./kurma/pod ./kurma/plugin ./kurma/image

# A thousand starts of a program without Kubernetes, which would take half of them to load.
crash: SCENARIOS = Failpoints|Crash|Killed
crash: need-root ## kill Kuryr at every failpoint and compare store and kernel (root)
	hack/deps.sh e2e
	go build -tags failpoints -ldflags '$(LDFLAGS)' -o bin/kuryr-crash ./cmd/kuryr
	go test -json -tags e2e,failpoints -count=1 -parallel 3 -timeout $(E2E_TIMEOUT) -run '$(SCENARIOS)' -skip '^Test(Crash|Killed)Child$$' \
		./test/e2e/crash $(KILLS) | $(call count,crash)

soak: need-root build ## random kills of Kuryr and Docker among forty users, for SOAK (60s); KURYR_SOAK_SEED repeats a run (root)
	hack/deps.sh e2e
	SOAK=$(SOAK) go test -json -tags e2e -count=1 -timeout 3h -run "$(SCENARIOS)" ./test/e2e/soak | $(call count,soak)

faults: need-root build ## slow, full and failing disks, a full /run, floods, daemons in the wrong order (root)
	hack/deps.sh e2e
	go test -json -tags e2e -count=1 -parallel 6 -timeout $(E2E_TIMEOUT) -run "$(SCENARIOS)" ./test/e2e/faults | $(call count,faults)

bench: need-root build ## measure against the raw kernel and Docker's bridge, as ratios (root)
	hack/deps.sh e2e
	go build -o bin/traffic ./test/bench/traffic
	go run ./test/bench

# A second engine to measure on: the one that hack/dockerd.sh has built, if it has.
DOCKERD ?= $(lastword $(filter-out %.lock,$(foreach f,$(wildcard $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kuryr/dockerd-29-v*),$(if $(findstring .new.,$(f)),,$(f)))))

bench-docker: need-root build ## measure the Docker front end: by method, published ports, a full store, the start (root)
	hack/deps.sh e2e
	go build -o bin/traffic ./test/bench/traffic
	go run ./test/bench -only containers,methods,published,scale,start $(if $(DOCKERD),-dockerd $(DOCKERD))

bench-neutron: need-root build ## measure on a real Neutron: its calls, Kuryr's own time, CPU and memory (root)
	hack/deps.sh neutron
	go run ./test/bench -only neutron -rounds 20

bench-kurma: need-root kurma-images ## measure a pod on a network of Kurma's, on crun and runc, against executing its CNI plugin directly (root)
	go run ./test/bench -only kurma -rounds 20

bench-sdn: need-root build ## measure the embedded SDN as a Neutron API, and what security groups cost (root)
	go run ./test/bench -only sdn,filter

# Pods of the cluster that Raven is measured on.
PODS ?= 10000

bench-kubernetes: need-root build ## measure CNI against Debian's bridge plugin and raw netlink, and Raven with PODS (10000) pods on a real API server (root)
	hack/deps.sh cni kubernetes
	programs=$$(hack/kubernetes.sh) && kwok=$$(hack/kwok.sh) && \
		KURYR_E2E_KUBERNETES=$$programs KURYR_BENCH_KWOK=$$kwok go run ./test/bench -only cni,warm,raven -rounds 20 -pods $(PODS)

# Numbers of Services that there are, one after the other.
SIZES ?= 1000,10000,30000

bench-services: need-root build ## measure Services on a node, and by the embedded SDN, against kube-proxy in nftables mode, with SIZES (1000,10000,30000) of them on a real API server (root)
	hack/deps.sh kubernetes
	programs=$$(hack/kubernetes.sh) && KURYR_E2E_KUBERNETES=$$programs go run ./test/bench -only services,balancers,more -sizes $(SIZES)

fuzz: ## run every fuzz target for FUZZTIME (10s; or 2000x, so many inputs)
	hack/fuzz.sh $(FUZZTIME)

demo: need-root ## two containers talking on a Kuryr network, in under a minute (root)
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

clean: ## remove what was built
	rm -rf bin man

need-root:
	@[ "$$(id -u)" = 0 ] || { echo "this target needs root: it makes network namespaces and starts container engines in them" >&2; exit 1; }

need-gcc:
	@command -v gcc >/dev/null || { echo "the race detector needs a C compiler: hack/deps.sh build" >&2; exit 1; }
