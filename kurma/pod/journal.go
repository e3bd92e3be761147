//go:build linux

package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// record is what the journal has of a pod.
type record struct {
	Pod
	Space   space    `json:"space"`             // what is pinned; zero until it is
	Process *process `json:"process,omitempty"` // the first of its container
}

// with gives a copy that can be changed.
func (r *record) with(change func(*record)) *record {
	c := *r
	c.Attachments = append([]Attachment{}, r.Attachments...)
	change(&c)
	return &c
}

// lockPatience is how long opening waits for a daemon that is just ending.
const lockPatience = 2 * time.Second

var (
	bucketMeta = []byte("meta")
	bucketPods = []byte("pods")
	keySchema  = []byte("schema")
)

const schema = "1"

// journal is the file of records. Writes that come while another is on its way to the disk go there together.
type journal struct {
	db *bbolt.DB

	mu      sync.Mutex
	waiting []*write
	writing bool
}

// write is a record that is to be on the disk; a nil one is to be gone.
type write struct {
	uuid string
	text []byte
	done chan error
}

// openJournal opens the file, made if missing, and reads it.
func openJournal(path string) (*journal, map[string]*record, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, fmt.Errorf("folder of the journal of pods: %w", err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, Timeout: lockPatience})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, nil, fmt.Errorf("journal of pods %s: another kuryr kurma has it open", path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("journal of pods %s: %w", path, err)
	}
	pods := map[string]*record{}
	if err := errors.Join(db.Update(prepare), db.View(func(tx *bbolt.Tx) error { return load(tx, pods) })); err != nil {
		_ = db.Close()
		return nil, nil, fmt.Errorf("journal of pods %s: %w", path, err)
	}
	return &journal{db: db}, pods, nil
}

func prepare(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	if _, err := tx.CreateBucketIfNotExists(bucketPods); err != nil {
		return err
	}
	switch has := string(meta.Get(keySchema)); has {
	case schema:
		return nil
	case "":
		return meta.Put(keySchema, []byte(schema))
	default:
		return fmt.Errorf("it is of schema %s, and this program knows %s: run the kuryr that wrote it", has, schema)
	}
}

func load(tx *bbolt.Tx, pods map[string]*record) error {
	bucket := tx.Bucket(bucketPods)
	if bucket == nil {
		return nil // prepare failed
	}
	return bucket.ForEach(func(uuid, text []byte) error {
		var r record
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("pod %s: %w", uuid, err)
		}
		pods[r.UUID] = &r
		return nil
	})
}

// put writes the record, and has it on the disk when it returns nil.
func (j *journal) put(r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("journal of pods: %w", err)
	}
	return j.write(&write{uuid: r.UUID, text: text})
}

// drop forgets the record. One that is not there is no error.
func (j *journal) drop(uuid string) error { return j.write(&write{uuid: uuid}) }

func (j *journal) write(w *write) error {
	w.done = make(chan error, 1)
	j.mu.Lock()
	j.waiting = append(j.waiting, w)
	lead := !j.writing
	j.writing = true
	j.mu.Unlock()
	if lead {
		j.flush()
	}
	if err := <-w.done; err != nil {
		return &Error{Internal, fmt.Errorf("journal of pods: %w", err)}
	}
	return nil
}

// flush writes what waits until nothing does. One caller at a time is in it.
func (j *journal) flush() {
	for {
		j.mu.Lock()
		all := j.waiting
		j.waiting = nil
		j.writing = len(all) > 0
		j.mu.Unlock()
		if len(all) == 0 {
			return
		}
		err := j.db.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket(bucketPods)
			for _, w := range all {
				if w.text == nil {
					if err := bucket.Delete([]byte(w.uuid)); err != nil {
						return err
					}
				} else if err := bucket.Put([]byte(w.uuid), w.text); err != nil {
					return err
				}
			}
			return nil
		})
		for _, w := range all {
			w.done <- err
		}
	}
}

func (j *journal) close() error { return j.db.Close() }
