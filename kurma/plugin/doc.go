//go:build linux

// Package plugin runs the networking pod: for each network a container made of its plugin's image, and in that the calls that attach pods.
//
// It owns the plugin containers from their bundle to their last process: their making by an OCI runtime (crun or runc), the supervision of their main executables,
// the folders below Config.State and Config.Run, and the time limit of calls. It knows nothing of pods but what a call passes on, does not fetch images
// (Images does), and must not change the kernel's network state: that is the plugins'.
package plugin
