package ipam

import (
	"context"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// What the previous version left becomes rows: its cleanups, and its objects.

// ImportRelease stores the deletion of a port. It can be called before the store is started.
func (s *Service) ImportRelease(ctx context.Context, port sdn.ID) error {
	if _, ok := s.addresses.Holder(portClaim(port)); ok {
		return nil
	}
	return s.importDeletion(ctx, addressRow{
		Object: reconcile.Object{Key: s.Names.Nonce()}, Done: true,
		Last: AddressState{Port: sdn.Port{Meta: sdn.Meta{ID: port}}},
	})
}

func (s *Service) importDeletion(ctx context.Context, row addressRow) error {
	row.Phase = reconcile.Deleting
	if err := s.addresses.Import(ctx, []addressRow{row}); err != nil {
		return err
	}
	return s.addresses.RemoveLater(ctx, row.Key)
}

// ImportUnconfirmed stores the deletion of a port with this Key, which the SDN may yet create.
func (s *Service) ImportUnconfirmed(ctx context.Context, network sdn.ID, key sdn.Key) error {
	_, nonce := portNonce(key)
	return s.importDeletion(ctx, addressRow{
		Object: reconcile.Object{Key: nonce}, Unconfirmed: true,
		Spec: AddressSpec{Network: network}, Last: AddressState{Key: key},
	})
}

// ImportPoolRelease is ReleasePool of a pool that has no row, with the hidden network that it may
// have.
func (s *Service) ImportPoolRelease(ctx context.Context, id api.PoolID) error {
	found, err := s.LookUpPool(ctx, id.Pool)
	if found {
		_, err = s.ReleasePool(ctx, &api.ReleasePoolRequest{PoolID: id})
	}
	return err
}

// ImportPort makes the row of a port that has addresses and was listed. Its addresses can have been
// released since, so it is read again.
func (s *Service) ImportPort(ctx context.Context, p sdn.Port) error {
	if _, ok := s.addresses.Holder(portClaim(p.ID)); ok || !s.mayImport(p) {
		return nil
	}
	_, nonce := portNonce(p.Key)
	unlock, err := s.locks.LockAll(ctx, macClaim(p.Network, p.MAC.String()), kindAddress+"/"+nonce)
	if err != nil {
		return err
	}
	defer unlock()
	p, err = s.SDN.Port(ctx, p.ID)
	if sdn.IsNotFound(err) || err == nil && !s.mayImport(p) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.importPort(ctx, p)
	return err
}
