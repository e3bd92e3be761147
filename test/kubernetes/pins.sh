#!/bin/bash
# pins.sh VERSION: writes go.mod and go.sum anew for a release of Kubernetes, with exactly the modules that the release itself is
# built with. The parts of Kubernetes that have modules of their own (k8s.io/api and the like) are those of the release, too.
set -eu -o pipefail
cd "$(dirname "$0")"
version=${1:?usage: pins.sh v1.35.4}
part=v0.${version#v1.}
export GOFLAGS=-mod=mod
release=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
[ -n "$release" ] || { echo "pins.sh: k8s.io/kubernetes $version cannot be had" >&2; exit 1; }
{
  echo "// The Kubernetes of \"make e2e-kubernetes\", written by pins.sh; a module of its own, so that its dependencies are not Kuryr's."
  echo "module github.com/kuryr/kuryr/test/kubernetes"
  echo
  grep -E '^(go|godebug) ' "$release/go.mod"
  printf '\nrequire k8s.io/kubernetes %s\n\n' "$version"
  # In the release's own tree the parts have no version and lie in staging.
  sed -n '/^require (/,/^)/p' "$release/go.mod" | sed -E "s/ v0\.0\.0( |$)/ $part\1/"
  sed -n '/^replace (/,/^)/p' "$release/go.mod" | sed -E "s,^(\t[^ ]+) => \./staging/src/([^ ]+),\1 => \2 $part,"
} >go.mod
cp "$release/go.sum" go.sum
chmod u+w go.sum
go mod tidy
