# Read by hack/lint.sh, hack/generate.sh, hack/images.sh and hack/vuln.sh: builds a tool that is pinned in a folder
# here, once, into a cache outside the tree.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kuryr/bin
mkdir -p "$cache"

# tool NAME PACKAGE: prints the path of the tool; builds it if its sources have changed.
tool() {
  local dir=hack/tools/$1 path
  path=$cache/$1-$({ find "$dir" -name '*.go' -o -name 'go.*' | sort | xargs cat; go version; } | sha256sum | cut -c1-12)
  if [ ! -x "$path" ]; then
    echo "$(basename "$0" .sh): building $1 (once)" >&2
    CGO_ENABLED=0 go build -C "$dir" -o "$path.new.$$" "$2" >&2 || { rm -f "$path.new.$$"; return 1; }
    mv "$path.new.$$" "$path"
  fi
  echo "$path"
}
