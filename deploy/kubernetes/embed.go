// Package kubernetes is what Kuryr installs in a cluster, as files: the CRDs and the templates of a Helm chart, which this folder is.
//
// They are embedded, so that "kuryr install kubernetes" needs nothing but the program, and gives what helm gives. Package kube/install renders them; this one must hold
// no code.
package kubernetes

import "embed"

// Files are Chart.yaml, values.yaml, crds/ and templates/.
//
//go:embed Chart.yaml values.yaml crds/*.yaml templates/*
var Files embed.FS
