#!/bin/bash
# lint.sh: gofmt, golangci-lint with all build tags, which vets and has staticcheck's checks, go vet and staticcheck for what is built without the tags alone, the last two tools at the
# versions pinned in hack/tools, and whether what is generated is committed as hack/generate.sh makes it.
# They are built once, into a cache outside the tree. LINT_BUDGET, seconds, bounds the first build of golangci-lint: past it
# that one is left out with a message, and the others still count.
set -u -o pipefail
cd "$(dirname "$0")/.."
. hack/tools/tool.sh
failed=0
tags=e2e,failpoints,kubernetes

files=$(git ls-files -co --exclude-standard -- '*.go' 2>/dev/null || find . -name '*.go')
unformatted=$(echo "$files" | xargs -r gofmt -l)
[ -z "$unformatted" ] || { echo "lint: not formatted by gofmt:"; echo "$unformatted"; failed=1; }

echo "lint: golangci-lint"
# Its findings are kept with the paths of the tree they were found in, which the exclusions would not know in another clone.
export GOLANGCI_LINT_CACHE=${cache%/bin}/golangci-lint/$(pwd | sha256sum | cut -c1-12)
unseen="" # where golangci-lint has not looked with the tags
if golangci=$(tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint "${LINT_BUDGET:-0}"); then
  "$golangci" run --timeout 25m --allow-parallel-runners ./... || failed=1
else
  unseen=./...
  if [ -n "${LINT_BUDGET:-}" ]; then
    echo "lint: golangci-lint left out: it could not be built within ${LINT_BUDGET} s"
  else
    echo "lint: golangci-lint could not be built" && failed=1
  fi
fi

echo "lint: go vet and staticcheck"
staticcheck=$(tool staticcheck honnef.co/go/tools/cmd/staticcheck) || { echo "lint: staticcheck could not be built" && failed=1; }
# check TAGS PACKAGES
check() {
  go vet -tags "$1" $2 || failed=1
  [ -z "$staticcheck" ] || "$staticcheck" -checks 'all,-ST1000,-ST1003,-ST1016' -tags "$1" $2 || failed=1
}
check "" "$(echo "$files" | xargs -r grep -lE "^//go:build.*!(${tags//,/|})" | xargs -n1 dirname | sort -u | sed 's,^,./,')"
[ -z "$unseen" ] || check "$tags" "$unseen"

echo "lint: what is generated"
hack/generate.sh --check || failed=1
[ $failed = 0 ] && echo "lint: clean"
exit $failed
