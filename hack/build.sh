#!/bin/bash
# build.sh [PROGRAM…]: builds the named programs, or all that users get, into bin/, static
# and with their version. It prints the size and purpose of each, and fails if one is
# larger than its limit.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}

# Name, module, build tags, package, limit in MB, purpose. "-" stands for no tags and no
# limit. kuryr-kubernetes is a program of its own because the Kubernetes libraries would
# be half of kuryr.
programs='
kuryr             .     -                      ./cmd/kuryr            30  daemons and commands: Docker, CNI, Kurma, embedded SDN
kuryr-kubernetes  .     kubernetes             ./cmd/kuryr            60  kuryr with the controllers and node agent of Kubernetes
kuryr-vif         .     -                      ./cmd/kuryr-vif        -   executables of VIF types, for /usr/libexec/kuryr
kuryr-cni         .     -                      ./cmd/kuryr-cni        -   CNI plugin that container runtimes run
kuryr-cni-api     .     -                      ./cmd/kuryr-cni-api    -   CNI plugin for calls that need no node daemon
kuryr-netavark    .     -                      ./cmd/kuryr-netavark   -   netavark plugin for podman
kuryr-oci-hook    .     -                      ./cmd/kuryr-oci-hook   -   hook of crun, runc and podman for networks of Kurma
kuryr-netplugin   .     -                      ./cmd/kuryr-netplugin  -   add and del of the plugin image kuryr-netplugin
cni-netplugin     .     -                      ./cmd/cni-netplugin    -   add and del of the plugin image cni-netplugin
kuryr-failpoints  .     failpoints,kubernetes  ./cmd/kuryr            -   for tests: kuryr-kubernetes with failpoints
kuryr-crash       .     failpoints             ./cmd/kuryr            -   for tests: kuryr with failpoints
privatehost       test  -                      ./e2e/cmd/privatehost  -   runs the demo and the suites on private hosts
'
released=(
  kuryr kuryr-kubernetes kuryr-vif kuryr-cni kuryr-cni-api kuryr-netavark kuryr-oci-hook
  kuryr-netplugin cni-netplugin
)

# row PROGRAM: sets name, module, tags, package, limit and purpose.
row() {
  read -r name module tags package limit purpose < <(grep "^$1 " <<<"$programs") ||
    { echo "build.sh: unknown program $1" >&2; exit 2; }
  tags=${tags#-}
}

# build MODULE TAGS OUTPUT PACKAGE…
build() {
  go build -C "$1" -trimpath -tags "$2" -ldflags "-s -w -X main.version=$version" -o "$PWD/bin/$3" "${@:4}"
}

[ $# -gt 0 ] || set -- "${released[@]}"
# One command compiles and links in parallel. Programs with other tags share packages with
# these, so they come afterwards. None of these needs HTTP/2, which is 0.5 MB of net/http and
# one more protocol to attack.
together=() apart=()
for program; do
  row "$program"
  if [ "$package" = "./cmd/$name" ]; then together+=("$package"); else apart+=("$name"); fi
done
[ ${#together[@]} = 0 ] || build . nethttpomithttp2 "" "${together[@]}"
for program in "${apart[@]}"; do
  row "$program"
  build "$module" "$tags" "$name" "$package"
done

large=
for program; do
  row "$program"
  size=$(stat -c %s "bin/$name")
  printf '%-20s %2d.%d MB  %s\n' "bin/$name" $((size / 1000000)) $((size / 100000 % 10)) "$purpose"
  [ "$limit" = - ] || [ "$size" -le $((limit * 1000000)) ] || large="$large $name (limit $limit MB)"
done
[ -z "$large" ] || { echo "build.sh: too large:$large" >&2; exit 1; }
