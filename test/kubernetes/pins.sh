#!/bin/bash
# pins.sh VERSION DNSVERSION: writes go.mod and go.sum anew for a release of Kubernetes, with exactly the modules that the release itself is
# built with, and for one of CoreDNS, which takes those too. The parts of Kubernetes that have modules of their own (k8s.io/api and the like) are those of the release.
set -eu -o pipefail
cd "$(dirname "$0")"
usage="usage: pins.sh v1.35.4 v1.12.4"
version=${1:?$usage} dns=${2:?$usage}
part=v0.${version#v1.}
export GOFLAGS=-mod=mod
release=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
[ -n "$release" ] || { echo "pins.sh: k8s.io/kubernetes $version cannot be had" >&2; exit 1; }
# In the release's own tree the parts have no version and lie in staging.
requires=$(sed -n '/^require (/,/^)/p' "$release/go.mod" | sed -E "s/ v0\.0\.0( |$)/ $part\1/")
{
  echo "// The Kubernetes of \"make e2e-kubernetes\", written by pins.sh; a module of its own, so that its dependencies are not Kuryr's."
  echo "module github.com/kuryr/kuryr/test/kubernetes"
  echo
  grep -E '^(go|godebug) ' "$release/go.mod"
  printf '\nrequire (\n\tk8s.io/kubernetes %s\n\tgithub.com/coredns/coredns %s\n)\n\n' "$version" "$dns"
  echo "$requires"
  sed -n '/^replace (/,/^)/p' "$release/go.mod" | sed -E "s,^(\t[^ ]+) => \./staging/src/([^ ]+),\1 => \2 $part,"
} >go.mod
cp "$release/go.sum" go.sum
chmod u+w go.sum
# CoreDNS asks for later versions of some modules; the release's stay, so that the components are what was released, and are built once for all programs.
held=$(mktemp)
trap 'rm -f "$held"' EXIT
go list -m -f '{{if not .Replace}}{{.Path}} {{.Version}}{{end}}' all | sort >"$held"
{
  printf '\nreplace (\n'
  echo "$requires" | awk '/^\t/ { print $1, $2 }' | sort | join "$held" - | awk '$2 != $3 && $1 !~ /^(k8s\.io|github\.com\/coredns)\// { print "\t" $1 " => " $1 " " $3 }'
  echo ")"
} >>go.mod
go mod tidy
