//go:build linux

// Package plugin runs the networking pod: for each network a container made of its plugin's image,
// and in that the calls that attach pods.
//
// It owns the kind "plugin" of the daemon's intent store (internal/reconcile) and the plugins'
// containers: their creation by an OCI runtime (crun or runc), the supervision of their main
// executables, the folders below Config.State and Config.Run, and the time limit of calls. It
// must not know more of pods than a call has, fetch images (Images does), or change the kernel's
// network state, which the plugins do.
//
//   - pod.go: the generations of networks that are configured or in use
//   - generation.go: what the store calls to start and remove the container of one
//   - bundle.go, runtime.go, cgroup.go, volumes.go, output.go: the parts of a container
//   - call.go, enter.go, result.go: add and del
//   - upgrade.go: the files of earlier versions
package plugin
