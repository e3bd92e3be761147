#!/bin/bash
# outdated.sh: lists the modules that Kuryr and its suites require directly and that are behind their newest served
# version, as MODULE VERSION -> NEWEST (FOLDER). Exit status 1 if there are any. It asks the Go module proxy. The
# modules in hack/tools, test/helm, test/kubernetes and test/kwok pin tools and engines and are left out.
set -eu -o pipefail
cd "$(dirname "$0")/.."

direct='{{if not (or .Main .Indirect .Replace)}}{{.Path}}{{end}}'
newer='{{with .Update}}{{$.Path}} {{$.Version}} -> {{.Version}}{{end}}'
found=0
for folder in . test; do
  modules=$(go list -C "$folder" -m -f "$direct" all)
  behind=$(go list -C "$folder" -m -u -f "$newer" $modules)
  [ -z "$behind" ] || { found=1 && sed "s,$, ($folder)," <<<"$behind"; }
done
[ $found = 0 ] && echo "every module that is required directly is at its newest version"
exit $found
