package core

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// StaleAfter is how long the cache may not show an object as it was written. Later it has
// come and gone.
const StaleAfter = time.Minute

// Older reports whether a is from before b was written. If versions cannot be compared,
// it is not.
func Older(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}
