# Read by hack/lint.sh and hack/generate.sh: builds a tool that is pinned in a folder here, once, into a cache outside the tree.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kuryr/bin
mkdir -p "$cache"

# tool NAME PACKAGE [SECONDS]: prints the path of the tool, built if it was not yet.
tool() {
  local dir=hack/tools/$1 path
  path=$cache/$1-$({ cat "$dir/go.sum" $(find "$dir" -name "*.go" | sort); go version; } | sha256sum | cut -c1-12)
  if [ ! -x "$path" ]; then
    echo "$(basename "$0" .sh): building $1 (once)" >&2
    CGO_ENABLED=0 timeout "${3:-0}" go build -C "$dir" -o "$path.new.$$" "$2" >&2 || { rm -f "$path.new.$$"; return 1; }
    mv "$path.new.$$" "$path"
  fi
  echo "$path"
}
