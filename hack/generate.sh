#!/bin/bash
# generate.sh [--check]: makes the deep copies of kube/api/v1 and the CRDs from its types, with controller-gen at the version pinned in hack/tools.
# With --check it changes nothing and fails where what is there is not what it would make.
set -eu -o pipefail
cd "$(dirname "$0")/.."
. hack/tools/tool.sh
types=kube/api/v1
crds=deploy/kubernetes/crds
generator=$(tool controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen)

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
"$generator" object paths="./$types" output:object:dir="$new/types"
"$generator" crd paths="./$types" output:crd:dir="$new/crds"

if [ "${1:-}" = --check ]; then
  stale=0
  diff -u "$types/zz_generated.deepcopy.go" "$new/types/zz_generated.deepcopy.go" || stale=1
  diff -ru "$crds" "$new/crds" || stale=1
  [ $stale = 0 ] || { echo "generate: what is committed is not what the types make: make generate" >&2; exit 1; }
  exit 0
fi
cp "$new/types/zz_generated.deepcopy.go" "$types/"
rm -f "$crds"/*.yaml
cp "$new/crds"/*.yaml "$crds/"
