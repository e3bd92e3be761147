package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// record is what the previous version kept of an endpoint in a file.
type record struct {
	Network     string
	Port        sdn.Port
	MTU         int
	Internal    bool
	Subnets     []sdn.Subnet
	Sandbox     string
	Started     time.Time
	Proxied     []portproxy.Forward
	Floating    bool
	Unpublished bool
	Forwarder   sdn.ID
	Exposed     bool
}

// ImportRecords makes rows of the records that the previous version kept in a folder, before the
// store is started, and deletes those that WriteRecord does not write. Endpoints that have a row are
// left out.
func (s *Service) ImportRecords(ctx context.Context, folder string) error {
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return nil // there are none
	}
	opened, err := jsonstore.OpenVolatile(folder)
	if err != nil {
		return fmt.Errorf("endpoint records: %w", err)
	}
	records, err := jsonstore.Load[record](opened)
	if err != nil {
		s.Log.WarnContext(ctx, "endpoint records not all readable", "folder", folder, "err", err)
	}
	var rows imported
	for id, r := range records {
		if !s.known(id) {
			s.addRecord(&rows, id, r)
		}
	}
	if err := s.store(ctx, rows); err != nil {
		return err
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return s.keepRecords(folder, records)
}

// keepRecords writes the records again of what the proxy still publishes: WriteRecord does so when the
// proxy listens, and this version may be replaced before.
func (s *Service) keepRecords(folder string, all map[string]record) error {
	for id, r := range all {
		if row, ok := s.publications.Get(id); !ok || row.Phase != reconcile.Wanted || len(r.Proxied) == 0 {
			continue
		}
		records, err := jsonstore.OpenVolatile(folder)
		if err != nil {
			return err
		}
		if err := records.Put(id, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) addRecord(rows *imported, id string, r record) {
	e := Spec{
		Network: r.Network, SDNNetwork: r.Port.Network, Existing: !s.IsOwn(r.Port), MTU: r.MTU,
		Internal: r.Internal, Subnets: lasting(r.Subnets), Started: r.Started.UTC().Round(0),
	}
	e.readTags(r.Port)
	rows.endpoints = append(rows.endpoints, endpointRow{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Done: true, Spec: e, Claims: e.claims(),
		Last: Last{Port: r.Port, StartEnded: r.Started.IsZero()},
	})
	parts := s.parts(id, r.Port)
	// Without a sandbox there may be an interface too.
	plug, publication := &parts.plugs[0], &parts.publications[0]
	plug.Spec = PlugSpec{Port: r.Port, MTU: r.MTU, Subnets: e.Subnets, Sandbox: r.Sandbox}
	publication.Spec = PublicationSpec{
		Port: r.Port.ID, Addresses: r.Port.Addresses, Binding: e.Binding, Sandbox: r.Sandbox,
		Existing: r.Forwarder,
	}
	publication.Last.Proxied = r.Proxied
	if len(r.Proxied) > 0 && !r.Exposed && !r.Floating {
		publication.Spec.Mode, publication.Last.Unknown = modeProxy, false
	}
	rows.plugs = append(rows.plugs, *plug)
	if !r.Unpublished || r.Floating || r.Exposed || len(r.Proxied) > 0 {
		rows.publications = append(rows.publications, *publication)
	}
	if slices.Contains(r.Port.Tags, identity.TagFloating+e.Floating) {
		rows.floating = append(rows.floating, parts.floating...)
	}
}

// ImportCleanup stores what is left to delete after DeleteEndpoint, Leave or
// RevokeExternalConnectivity. The port is "" if it is unknown.
func (s *Service) ImportCleanup(ctx context.Context, method, id string, port sdn.ID) error {
	ends := method == "NetworkDriver.DeleteEndpoint"
	if err := s.importUnknown(ctx, id, ends); err != nil {
		return err
	}
	if ends && s.knownPort(id).ID == "" {
		s.endpoints.Note(id, func(l Last) Last { l.Port.ID = port; return l })
	}
	if err := s.publications.RemoveLater(ctx, id); err != nil {
		return err
	}
	if method == "NetworkDriver.RevokeExternalConnectivity" {
		return nil
	}
	if err := errors.Join(s.floating.RemoveLater(ctx, id), s.plugs.RemoveLater(ctx, id)); err != nil || !ends {
		return err
	}
	return s.endpoints.RemoveLater(ctx, id)
}

// ImportUnconfirmed stores the deletion of the port of an endpoint that the SDN may yet create.
func (s *Service) ImportUnconfirmed(ctx context.Context, id string, network sdn.ID, key sdn.Key) error {
	row := endpointRow{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Deleting, Unconfirmed: true,
		Spec: Spec{SDNNetwork: network},
	}
	row.Last.Port.Key = key
	return s.endpoints.Import(ctx, []endpointRow{row})
}

// ImportPort makes the rows of an endpoint that has a port, on a network of the engine's.
func (s *Service) ImportPort(ctx context.Context, networkID string, p sdn.Port) error {
	id := identity.EndpointOf(p)
	if id == "" || s.known(id) {
		return nil
	}
	n, err := s.Networks.Find(ctx, networkID)
	if err != nil {
		return err
	}
	return s.importFound(ctx, id, networkID, n, p)
}

// WriteRecords writes a record of each endpoint that the proxy publishes, so that the previous version
// publishes them again if it is installed next. It finds everything else in the SDN.
func (s *Service) WriteRecords() error {
	var errs []error
	for r := range s.publications.Rows() {
		errs = append(errs, s.WriteRecord(r.Key))
	}
	return errors.Join(errs...)
}

// WriteRecord writes the record of an endpoint if the proxy publishes it.
func (s *Service) WriteRecord(id string) error {
	r, published := s.publications.Get(id)
	row, known := s.endpoints.Get(id)
	if !published || !known || len(r.Last.Proxied) == 0 || r.Phase != reconcile.Wanted {
		return nil
	}
	records, err := jsonstore.OpenVolatile(s.Records)
	if err != nil {
		return err
	}
	return records.Put(id, record{
		Network: row.Spec.Network, Port: row.Last.Port, MTU: row.Spec.MTU, Internal: row.Spec.Internal,
		Subnets: subnetsOf(row.Last.Port, row.Spec.Subnets), Sandbox: r.Spec.Sandbox,
		Proxied: r.Last.Proxied, Unpublished: true, Exposed: r.Last.Group != "",
	})
}

// deleteRecord deletes the record of a publication that is gone.
func (s *Service) deleteRecord(r publicationRow) {
	if s.Records == "" || s.isReplaced(r.Object) {
		return
	}
	if err := os.Remove(filepath.Join(s.Records, r.Key+".json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Log.Warn("record for the previous version not deleted", "endpoint", r.Key, "err", err)
	}
}
