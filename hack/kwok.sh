#!/bin/bash
# kwok.sh: prints the path of kwok, which plays nodes and pods for "make bench-kubernetes", at the version pinned in test/kwok. It is built once, in
# some minutes, into a cache outside the tree.
# The exit status is 3 where its source cannot be had (no network, or the module proxy refuses it), 1 where it cannot be built.
set -eu -o pipefail
cd "$(dirname "$0")/../test/kwok"
module=sigs.k8s.io/kwok
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kuryr
version=$(sed -n "s,^.*$module \(v[^ ]*\).*,\1,p" go.mod)
[ -n "$version" ] || { echo "kwok.sh: go.mod does not name a version of $module" >&2; exit 1; }
# The inputs are part of the name: what is there is whole and of this version, since it comes by a rename.
path=$cache/kwok-$version-$(cat go.mod go.sum | sha256sum | cut -c1-8)
if [ ! -x "$path" ]; then
  export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false"
  mkdir -p "$cache"
  # One build at a time: a second would only take the processors from the first.
  exec 9>"$cache/kwok.lock"
  flock 9
  if [ ! -x "$path" ]; then
    echo "kwok.sh: fetching the source of kwok ($module $version)" >&2
    if ! said=$(timeout 600 go list -deps $module/cmd/kwok 2>&1 >/dev/null); then
      echo "$said" | tail -n 5 >&2
      echo "kwok.sh: the source of $module $version cannot be had from the module proxy ($(go env GOPROXY))" >&2
      exit 3
    fi
    echo "kwok.sh: building it (once, some minutes)" >&2
    trap 'rm -f "$path.new.$$"' EXIT
    nice -n 10 go build -trimpath -ldflags "-s -w" -o "$path.new.$$" $module/cmd/kwok >&2
    mv "$path.new.$$" "$path"
  fi
fi
echo "$path"
