package claim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/jsonstore"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node"
)

// bootFile tells one boot of the kernel from another: proc(5), /proc/sys/kernel/random/boot_id.
const bootFile = "/proc/sys/kernel/random/boot_id"

// key is an attachment's identity.
type key struct{ container, iface string }

func keyOf(a node.Attachment) key { return key{a.Container, a.Interface} }

// name is that of the key's record. A container's id and an interface's name may have letters that no file's name has.
func (k key) name() string {
	sum := sha256.Sum256([]byte(k.container + "/" + k.iface))
	return hex.EncodeToString(sum[:16])
}

// record is what the journal says of one attachment.
type record struct {
	Attachment node.Attachment
	UID        types.UID        // the pod's in the API; the runtime may tell none
	Port       v1.KuryrPortSpec // as it was claimed, so that it is honoured also when its KuryrPort has gone
	Since      time.Time        // to the second, as the API keeps it
	// Adopted is set where the API alone knew of it: its container is of before a reboot, or the journal was lost.
	Adopted bool `json:",omitempty"`
	// Released is set where it was given back and the API may not know yet. The port may be another's meanwhile.
	Released bool `json:",omitempty"`
}

// after tells whether of two records of one port this is the newer. What was adopted is of before all else.
func (r record) after(other record) bool {
	if r.Adopted != other.Adopted {
		return other.Adopted
	}
	return r.Since.After(other.Since)
}

// journal keeps records in a folder of this boot's own. It need not wait for the disk: a kill of the process loses nothing that was written, and what a
// kill of the machine loses is void.
type journal struct {
	folder *jsonstore.Store
	mu     sync.Mutex
	all    map[key]record
}

// openJournal reads this boot's records and removes those of others. What cannot be read is named in the error, beside the journal with all else.
func openJournal(dir, boot string) (*journal, error) {
	if boot == "" {
		id, err := os.ReadFile(bootFile)
		if err != nil {
			return nil, fmt.Errorf("read the boot id: %w", err)
		}
		boot = strings.TrimSpace(string(id))
	}
	folder, err := jsonstore.OpenVolatile(filepath.Join(dir, boot))
	if err != nil {
		return nil, err
	}
	others, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for _, o := range others {
		if o.IsDir() && o.Name() != boot {
			if err := os.RemoveAll(filepath.Join(dir, o.Name())); err != nil {
				return nil, fmt.Errorf("journal of another boot: %w", err)
			}
		}
	}
	named, err := jsonstore.Load[record](folder)
	j := &journal{folder: folder, all: map[key]record{}}
	for name, r := range named {
		if k := keyOf(r.Attachment); k.name() == name {
			j.all[k] = r
		} else {
			err = errors.Join(err, fmt.Errorf("record %s: it is of another attachment", name))
		}
	}
	return j, err
}

// put writes an attachment's record, in place of one it has.
func (j *journal) put(r record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := keyOf(r.Attachment)
	if err := j.folder.Put(k.name(), r); err != nil {
		return err
	}
	j.all[k] = r
	return nil
}

// release writes down that an attachment gave its port back. On a disk without room its record goes: should the process be killed before the API server knows, the
// port rests until the pod has gone.
func (j *journal) release(r record) error {
	r.Released = true
	if err := j.put(r); err != nil {
		if j.drop(keyOf(r.Attachment)) != nil {
			return err
		}
	}
	return nil
}

// drop removes an attachment's record.
func (j *journal) drop(k key) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.folder.Delete(k.name()); err != nil {
		return err
	}
	delete(j.all, k)
	return nil
}

// forget removes what is known of an attachment that gave back this port, unless it has one again.
func (j *journal) forget(k key, port string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.all[k]
	if !ok || !r.Released || r.Port.ID != port {
		return nil
	}
	if err := j.folder.Delete(k.name()); err != nil {
		return err
	}
	delete(j.all, k)
	return nil
}
