#!/bin/bash
# chart.sh VERSION DIGEST [DIR]: writes DIR/kuryr-VERSION.tgz (bin/kuryr-VERSION.tgz), the Helm
# chart of a release. Its appVersion is VERSION, and its image.digest is DIGEST, which the
# registry told when the release's image was pushed. The same input makes the same archive.
set -eu -o pipefail
cd "$(dirname "$0")/.."
fail() { echo "chart.sh: $1" >&2; exit 2; }
[[ ${1-} =~ ^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail "want a version such as 1.2.3, not '${1-}'"
[[ ${2-} =~ ^sha256:[0-9a-f]{64}$ ]] || fail "want the image's digest, sha256:…, not '${2-}'"
to=${3:-bin}
archive=$to/kuryr-${1#v}.tgz
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/kuryr" "$to"
tar -C deploy/kubernetes --exclude='*.go' -cf - . | tar -C "$root/kuryr" -xf -
sed -i "s/^version: .*/version: ${1#v}/; s/^appVersion: .*/appVersion: $1/" "$root/kuryr/Chart.yaml"
sed -i "s/^  digest: \"\"$/  digest: $2/" "$root/kuryr/values.yaml"
grep -q "^  digest: $2$" "$root/kuryr/values.yaml" || fail "values.yaml has no line for image.digest"
tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u=rwX,go=rX -cf - kuryr |
  gzip -n >"$archive"
echo "$archive: version $1, image $2"
