#!/bin/bash
# kubernetes.sh: prints the folder with the Kubernetes of "make e2e-kubernetes": etcd, kube-apiserver, kube-controller-manager,
# kube-proxy, kube-scheduler and kubelet (one program by their names), CoreDNS, and the program pause of pods. It is built once, in some minutes,
# from the module test/kubernetes into a cache outside the tree; containerd, runc and the rest are Debian's.
# kubernetes.sh upstream: the folder with Kubernetes' own end-to-end tests of sig-network (e2e.test), ginkgo, which runs them, and
# agnhost, which is what their pods run.
# The exit status is 3 where the source cannot be had (no network, or the module proxy refuses it), 1 where it cannot be built.
set -eu -o pipefail
cd "$(dirname "$0")/../test/kubernetes"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kuryr
version=$(sed -n 's,^\tk8s.io/kubernetes \(v[^ ]*\)$,\1,p' go.mod)
[ -n "$version" ] || { echo "kubernetes.sh: go.mod does not name a version of k8s.io/kubernetes" >&2; exit 1; }
case ${1:-cluster} in
  cluster) name=kubernetes own="./hyperkube ./coredns ./pause" packages=$own ;;
  upstream) name=kubernetes-upstream own=./upstream packages="k8s.io/kubernetes/test/images/agnhost github.com/onsi/ginkgo/v2/ginkgo" ;;
  *) echo "usage: kubernetes.sh [cluster|upstream]" >&2; exit 1 ;;
esac
# Components compare these stamps with one another; without them each says v0.0.0.
minor=${version#v1.} minor=${minor%%.*}
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
done
# The inputs are part of the name: what is there is whole and of this version, since it comes by a rename.
path=$cache/$name-$version-$({ cat go.mod go.sum; for p in $own; do cat $p/*.go; done; echo "$ldflags"; } | sha256sum | cut -c1-8)
if [ ! -d "$path" ]; then
  export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false"
  mkdir -p "$cache"
  # One build at a time: a second would only take the processors from the first.
  exec 9>"$cache/kubernetes.lock"
  flock 9
  if [ ! -d "$path" ]; then
    echo "kubernetes.sh: fetching the source of Kubernetes $version" >&2
    if ! said=$(timeout 600 go list -deps -test $packages $own 2>&1 >/dev/null); then
      echo "$said" | tail -n 5 >&2
      echo "kubernetes.sh: the source of Kubernetes $version cannot be had from the module proxy ($(go env GOPROXY))" >&2
      exit 3
    fi
    echo "kubernetes.sh: building it (once, some minutes)" >&2
    rm -rf "$path.new"
    mkdir "$path.new"
    nice -n 10 go build -trimpath -ldflags "$ldflags" -o "$path.new/" $packages >&2
    if [ $name = kubernetes ]; then
      for component in etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet; do ln -s hyperkube "$path.new/$component"; done
    else
      nice -n 10 go test -c -trimpath -ldflags "$ldflags" -o "$path.new/e2e.test" ./upstream >&2
      # What agnhost's image has beside it, by which one of the tests makes a TLS connection.
      agnhost=$(go list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)
      install -m 644 "$agnhost"/porter/localhost.{crt,key} "$agnhost/VERSION" "$path.new/"
    fi
    mv "$path.new" "$path"
  fi
fi
echo "$path"
