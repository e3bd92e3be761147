#!/bin/bash
# dockerd.sh: prints the path of a Docker engine newer than Debian's, at the version pinned in hack/tools/dockerd. It is built once, in
# some minutes, into a cache outside the tree; all else that it needs (containerd, runc, docker-init, the client) is Debian's.
# The exit status is 3 where its source cannot be had (no network, or the module proxy refuses it), 1 where it cannot be built.
#
# Debian's runc does not know time namespaces, and its docker-proxy is another engine's: start this one with
# --feature time-namespaces=false --userland-proxy=false, as test/e2e/privatehost does.
set -eu -o pipefail
cd "$(dirname "$0")/tools/dockerd"
module=github.com/moby/moby/v2
package=$module/cmd/dockerd
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kuryr
version=$(sed -n "s,^.*$module \(v[^ ]*\).*,\1,p" go.mod)
[ -n "$version" ] || { echo "dockerd.sh: go.mod does not name a version of $module" >&2; exit 1; }
tags="netgo osusergo no_systemd"
ldflags="-s -w -X $module/dockerversion.Version=29-$version -X $module/dockerversion.GitCommit=$version"
# The inputs are part of the name: what is there is whole and of this version, since it comes by a rename.
path=$cache/dockerd-29-$version-$({ cat go.mod go.sum; echo "$tags $ldflags"; } | sha256sum | cut -c1-8)
if [ ! -x "$path" ]; then
  export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false"
  mkdir -p "$cache"
  # One build at a time: a second would only take the processors from the first.
  exec 9>"$cache/dockerd.lock"
  flock 9
  if [ ! -x "$path" ]; then
    echo "dockerd.sh: fetching the source of the Docker engine ($module $version)" >&2
    if ! said=$(timeout 600 go list -deps -tags "$tags" "$package" 2>&1 >/dev/null); then
      echo "$said" | tail -n 5 >&2
      echo "dockerd.sh: the source of $module $version cannot be had from the module proxy ($(go env GOPROXY))" >&2
      exit 3
    fi
    echo "dockerd.sh: building it (once, some minutes)" >&2
    trap 'rm -f "$path.new.$$"' EXIT
    go build -tags "$tags" -ldflags "$ldflags" -o "$path.new.$$" "$package" >&2
    mv "$path.new.$$" "$path"
  fi
fi
echo "$path"
