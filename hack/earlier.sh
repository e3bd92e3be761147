#!/bin/bash
# earlier.sh: prints the path of kuryr as of the version that upgrades start from. The program
# is built once, from the history of this repository, into a cache outside the tree.
#
# The exit status is 3 if the history lacks the commit, 1 if the build fails.
set -eu -o pipefail
cd "$(dirname "$0")/.."
commit=faf2083fdcf73f68d3e909ede4e09c79cd61e323
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kuryr
folder=$cache/earlier-$commit
if [ ! -x "$folder/kuryr" ]; then
  git cat-file -e "$commit^{commit}" 2>/dev/null || {
    echo "earlier.sh: the history lacks commit $commit: git fetch --unshallow" >&2
    exit 3
  }
  mkdir -p "$folder"
  exec 9>"$folder/lock"
  flock 9
  if [ ! -x "$folder/kuryr" ]; then
    echo "earlier.sh: building kuryr of commit ${commit:0:7} (once)" >&2
    source=$(mktemp -d "$folder/source.XXXXXX")
    trap 'rm -rf "$source"' EXIT
    git archive "$commit" | tar -x -C "$source"
    CGO_ENABLED=0 go build -C "$source" -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=${commit:0:7}" -o "$source/kuryr" ./cmd/kuryr >&2
    mv "$source/kuryr" "$folder/kuryr"
  fi
fi
echo "$folder/kuryr"
