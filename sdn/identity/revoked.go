package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/jsonstore"
)

// How many tokens can be revoked at a time, in all and of one credential, so that one
// credential cannot use up what others need; each is forgotten at its own end, within an
// hour.
const (
	maxRevoked     = 10000
	maxRevokedEach = 1000
)

var errTooMany = errors.New("too many tokens have been revoked within the hour")

// revoked are the issued tokens that hold no more though their end has not come.
type revoked struct {
	path string
	mu   sync.RWMutex
	ends map[string]time.Time // see revokedKey
}

// revokedKey tells a credential's tokens apart.
func revokedKey(credential, audit string) string { return credential + "/" + audit }

func loadRevoked(path string, now time.Time) (*revoked, error) {
	r := &revoked{path: path, ends: map[string]time.Time{}}
	if path == "" {
		return r, nil
	}
	ends, err := jsonstore.ReadFile[map[string]time.Time](path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf(
			"revoked tokens: %s cannot be read (deleted, tokens taken back within the last hour hold "+
				"again): %w",
			path, err,
		)
	}
	r.ends = ends
	r.forget(now)
	return r, nil
}

func (r *revoked) forget(now time.Time) {
	maps.DeleteFunc(r.ends, func(_ string, end time.Time) bool { return !now.Before(end) })
}

func (r *revoked) has(credential, audit string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, is := r.ends[revokedKey(credential, audit)]
	return is
}

// add takes a token back. With an error nothing has changed.
func (r *revoked) add(credential, audit string, end, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends == nil {
		r.ends = map[string]time.Time{}
	}
	r.forget(now)
	each := 0
	for key := range r.ends {
		if strings.HasPrefix(key, revokedKey(credential, "")) {
			each++
		}
	}
	if len(r.ends) >= maxRevoked || each >= maxRevokedEach {
		return errTooMany
	}
	key := revokedKey(credential, audit)
	r.ends[key] = end
	if r.path == "" {
		return nil
	}
	err := jsonstore.WriteFile(r.path, r.ends)
	if err != nil {
		delete(r.ends, key)
	}
	return err
}
