package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
)

// A download is a file of a server that is brought here in as many pieces as it takes. What has come is kept across errors and processes, in the store's folder "partial", until
// drop; nobody but this file looks there before all of it has come.
type download struct {
	store     *Store
	client    *http.Client
	url       string
	reference string // whose it is
	item      string
	exact     bool   // what the URL gives can never change, as its digest is in it or known
	unless    string // an ETag: what has it is not wanted
	progress  func(done, total int64)
}

// partial is what is known of a download that is not whole, or not used yet.
type partial struct {
	Reference string `json:"reference"`
	URL       string `json:"url"`
	ETag      string `json:"etag,omitempty"`
	Modified  string `json:"modified,omitempty"`
	Size      int64  `json:"size"` // of all of it; 0 where the server does not say
	Boot      string `json:"boot"` // what came before the machine's last start may not have reached the disk
	Whole     bool   `json:"whole,omitempty"`
}

var errNotModified = errors.New("not modified")

// attempts is how often a download that stands still is tried again, at once and then after 1, 2, 4 … seconds. What moves is tried for ever.
const attempts = 4

func (d *download) path() string { return d.store.path(partDir, key(d.reference+"\n"+d.url)) }

// run returns the file, whole, and what the server said of it. Its digest is for the caller to check, who must drop it if it is wrong.
func (d *download) run(ctx context.Context) (*os.File, partial, error) {
	file, err := os.OpenFile(d.path(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, partial{}, err
	}
	p, err := d.fetch(ctx, file)
	if err != nil {
		file.Close()
		if errors.Is(err, errNotModified) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrInvalid) {
			err = errors.Join(err, d.drop())
		}
		return nil, partial{}, fmt.Errorf("%s: %w", d.url, err)
	}
	failpoint.Here("image.download.whole")
	return file, p, nil
}

func (d *download) fetch(ctx context.Context, file *os.File) (partial, error) {
	p := d.recall()
	pause := backoff.Backoff{Min: time.Second, Max: time.Minute}
	for tried := 0; ; {
		info, err := file.Stat()
		if err != nil {
			return p, err
		}
		before := info.Size()
		if p.Whole && before == p.Size {
			return p, nil
		}
		var again bool
		if again, err = d.once(ctx, file, &p); err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return p, context.Cause(ctx)
		}
		if !again {
			return p, err
		}
		if info, failure := file.Stat(); failure == nil && info.Size() > before {
			tried = 0
			pause.Reset()
		}
		if tried++; tried > attempts {
			return p, err
		}
		if tried > 1 {
			if failure := pause.Wait(ctx); failure != nil {
				return p, failure
			}
		}
	}
}

// once asks for what is missing, or for all where what is there may be of another file. It says whether to try again.
func (d *download) once(ctx context.Context, file *os.File, p *partial) (again bool, err error) {
	ctx, alive, stop := watched(ctx)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return false, err
	}
	have, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	request.Header.Set("Accept-Encoding", "identity")
	strong := p.ETag != "" && !strings.HasPrefix(p.ETag, "W/")
	if resume := have > 0 && p.URL != "" && (d.exact || strong); resume {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		if strong {
			request.Header.Set("If-Range", p.ETag)
		}
	} else if have == 0 && d.unless != "" {
		request.Header.Set("If-None-Match", d.unless)
	}
	response, err := d.client.Do(request)
	if err != nil {
		var untrusted *tls.CertificateVerificationError
		return !errors.Is(err, errPlain) && !errors.As(err, &untrusted), err
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusOK:
		*p = partial{}
		have = 0
	case code == http.StatusPartialContent:
		if start, total, ok := contentRange(response.Header.Get("Content-Range")); !ok || start != have || p.Size > 0 && total > 0 && total != p.Size {
			return true, errors.Join(fmt.Errorf("the server answered with bytes that were not asked for"), file.Truncate(0))
		}
	case code == http.StatusNotModified && d.unless != "":
		return false, errNotModified
	case code == http.StatusRequestedRangeNotSatisfiable && have > 0:
		return true, errors.Join(fmt.Errorf("the server has less of it than is here"), file.Truncate(0))
	case code == http.StatusNotFound || code == http.StatusGone:
		return false, fmt.Errorf("%w: %s", ErrNotFound, response.Status)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		return true, fmt.Errorf("the server answered %s", response.Status)
	default:
		return false, fmt.Errorf("the server answered %s", response.Status)
	}
	return d.receive(response, file, p, have, alive)
}

func (d *download) receive(response *http.Response, file *os.File, p *partial, have int64, alive func()) (again bool, err error) {
	limit := d.store.limits.Download
	if response.ContentLength > limit-have {
		return false, invalid("it has %d bytes, more than %d", response.ContentLength+have, limit)
	}
	if have == 0 {
		// Emptied before the record says whose bytes they are.
		if err := file.Truncate(0); err != nil {
			return false, err
		}
		*p = partial{Reference: d.reference, URL: d.url, ETag: response.Header.Get("ETag"), Modified: response.Header.Get("Last-Modified"),
			Size: max(response.ContentLength, 0), Boot: bootID()}
		if err := d.record(*p); err != nil {
			return false, err
		}
		failpoint.Here("image.download.begun")
	}
	if _, err := file.Seek(have, io.SeekStart); err != nil {
		return false, err
	}
	to := &meter{file: file, n: have, told: have, limit: limit, progress: func(n int64) { d.progress(n, p.Size) }, alive: alive}
	_, err = io.Copy(to, response.Body)
	if to.failed != nil {
		return false, to.failed
	}
	if err != nil {
		return true, fmt.Errorf("after %d bytes: %w", to.n, err)
	}
	if p.Size > 0 && to.n != p.Size {
		return true, fmt.Errorf("it ended after %d of %d bytes", to.n, p.Size)
	}
	p.Size, p.Whole = to.n, true
	return false, d.record(*p)
}

// meter writes to a file and tells of it.
type meter struct {
	file           *os.File
	n, told, limit int64
	progress       func(int64)
	alive          func()
	failed         error
}

func (m *meter) Write(b []byte) (int, error) {
	m.alive()
	if int64(len(b)) > m.limit-m.n {
		m.failed = invalid("it has more than %d bytes", m.limit)
		return 0, m.failed
	}
	n, err := m.file.Write(b)
	m.failed = err
	if m.n += int64(n); m.n-m.told >= 1<<20 {
		m.told = m.n
		m.progress(m.n)
		failpoint.Here("image.download.part")
	}
	return n, err
}

// contentRange reads "bytes 5-9/10".
func contentRange(s string) (start, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	from, rest, dash := strings.Cut(s, "-")
	_, size, slash := strings.Cut(rest, "/")
	start, err := strconv.ParseInt(from, 10, 64)
	if size != "*" {
		var failure error
		total, failure = strconv.ParseInt(size, 10, 64)
		err = errors.Join(err, failure)
	}
	return start, total, ok && dash && slash && err == nil
}

// recall is what is known of what has come; where that is not to be trusted it is nothing, and the download starts anew.
func (d *download) recall() partial {
	p, err := jsonstore.ReadFile[partial](d.path() + ".json")
	if err != nil || p.URL != d.url || !d.exact && p.Boot != bootID() {
		return partial{}
	}
	if p.Whole && !d.exact {
		p.Whole = false // it may have changed on the server since; a range past its end says so
	}
	return p
}

func (d *download) record(p partial) error {
	return jsonstore.WriteFile(d.path()+".json", p)
}

// drop forgets what has come.
func (d *download) drop() error {
	return errors.Join(remove(d.path()+".json"), remove(d.path()))
}

func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// bootID changes with each start of the machine.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// collectPartial removes the downloads of all other references.
func (s *Store) collectPartial(references []string) error {
	wanted := map[string]bool{}
	for _, ref := range references {
		wanted[ref] = true
	}
	entries, err := os.ReadDir(s.path(partDir))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(s.path(partDir), strings.TrimSuffix(e.Name(), ".json"))
		p, err := jsonstore.ReadFile[partial](path + ".json")
		if err == nil && wanted[p.Reference] {
			continue
		}
		errs = append(errs, remove(path+".json"), remove(path))
	}
	return errors.Join(errs...)
}
