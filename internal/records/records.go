// Package records is the former name of package jsonstore. It must not get new users.
package records

import "github.com/kuryr/kuryr/internal/jsonstore"

// Folder is jsonstore.Store.
type Folder = jsonstore.Store

// Open is jsonstore.Open.
func Open(dir string) (*Folder, error) { return jsonstore.Open(dir) }

// OpenVolatile is jsonstore.OpenVolatile.
func OpenVolatile(dir string) (*Folder, error) { return jsonstore.OpenVolatile(dir) }

// At is jsonstore.Shared.
func At(dir string) *Folder { return jsonstore.Shared(dir) }

// Load is jsonstore.Load.
func Load[T any](f *Folder) (map[string]T, error) { return jsonstore.Load[T](f) }
