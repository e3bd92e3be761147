#!/bin/bash
# lint.sh: every check that does not run the program: gofmt, stylecheck, golangci-lint with all build tags, go vet and
# staticcheck for the packages with files that the tags leave out, and the generated files.
# The tools are pinned in hack/tools and built once, into a cache outside the tree.
set -u -o pipefail
cd "$(dirname "$0")/.."
. hack/tools/tool.sh
# As in the Makefile, so that the build cache is shared.
export CGO_ENABLED=0 GOFLAGS=${GOFLAGS--trimpath}

# present lists the files of the tree that match the patterns.
present() {
  git ls-files -co --exclude-standard -- "$@" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}

# step NAME COMMAND…: runs one check and prints its time.
failed=0
step() {
  local name=$1 start=$SECONDS said=ok
  shift
  echo "lint: $name"
  "$@" || { failed=1 said=FAILED; }
  echo "lint: $name: $said ($((SECONDS - start)) s)"
}

format() {
  local unformatted
  unformatted=$(present '*.go' | xargs gofmt -l) && [ -z "$unformatted" ] ||
    { echo "not formatted by gofmt:" "$unformatted"; return 1; }
}

# linters runs on a copy of the tree at a fixed path: golangci-lint has absolute paths in its cache, so a clone elsewhere
# could not use it, and analysing all dependencies takes minutes.
linters() {
  local lint module copy=${cache%/bin}/lint-tree rc=0
  lint=$(tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint) || return 1
  exec 9>"$copy.lock" && flock 9 || return 1
  rm -rf "$copy" && mkdir "$copy" && present | tar -cT - | tar -xC "$copy" || return 1
  for module in . test hack/tools/stylecheck; do
    (cd "$copy/$module" && GOLANGCI_LINT_CACHE=${cache%/bin}/golangci-lint "$lint" run --timeout 25m ./...) || rc=1
  done
  rm -rf "$copy"
  exec 9>&-
  return $rc
}

# untagged checks the packages that have files with a constraint such as "!kubernetes".
untagged() {
  local staticcheck packages rc=0
  staticcheck=$(tool staticcheck honnef.co/go/tools/cmd/staticcheck) || return 1
  packages=$(present '*.go' ':!test' | xargs grep -lE '^//go:build.*!(e2e|failpoints|kubernetes)' |
    xargs -n1 dirname | sort -u | sed 's,^,./,')
  go vet $packages || rc=1
  "$staticcheck" -checks 'all,-ST1000,-ST1003,-ST1016' $packages || rc=1
  return $rc
}

style() {
  local stylecheck
  stylecheck=$(tool stylecheck .) && "$stylecheck"
}

step gofmt format
step stylecheck style
step golangci-lint linters
step "go vet and staticcheck without tags" untagged
step "generated files" hack/generate.sh --check
[ $failed = 0 ] && echo "lint: clean"
exit $failed
