package neutron

import (
	"context"

	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/sdn"
)

// locks keep calls for one object apart.
type locks struct{ keymutex.Mutex }

// lock waits for the name. The function it gives lets go.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	if unlock, err = l.Lock(ctx, name); err != nil {
		return nil, sdn.Unavailable(err, "Neutron", "another call for the same object has not ended in time")
	}
	return unlock, nil
}
