// Package bundle writes support bundles: archives of what helps to find a fault, without
// what concerns no reader.
//
// It owns the archive's form, its bounds in size and time, and the redaction that
// everything goes through. The caller decides what is collected; a part that fails is
// told in the archive and does not stop the others. It must not change anything.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// Bounds of a bundle.
const (
	MaxPart  = 4 << 20 // bytes of one part, before compression; more is cut off
	MaxTotal = 64 << 20
	PartTime = 10 * time.Second
	AllTime  = 2 * time.Minute
)

// Part is one file of a bundle.
type Part struct {
	Name  string // path within the bundle
	Write func(ctx context.Context, w io.Writer) error
}

// errFull says that a part, or the whole, has as much as fits.
var errFull = errors.New("cut off: it is too long")

// Write writes a bundle of the parts, below a folder, as a compressed archive. Its error
// is that of out alone.
func Write(ctx context.Context, out io.Writer, folder string, now time.Time, parts []Part) error {
	ctx, cancel := context.WithTimeout(ctx, AllTime)
	defer cancel()
	zipped := gzip.NewWriter(out)
	archive := tar.NewWriter(zipped)
	left := MaxTotal
	add := func(name string, data []byte) error {
		left -= len(data)
		err := archive.WriteHeader(&tar.Header{
			Name: path.Join(folder, name), Mode: 0o600, Size: int64(len(data)), ModTime: now,
			Typeflag: tar.TypeReg,
		})
		if err == nil {
			_, err = archive.Write(data)
		}
		return err
	}
	var complaints strings.Builder
	for _, p := range parts {
		data, err := collect(ctx, p, min(left, MaxPart))
		if err != nil {
			fmt.Fprintf(&complaints, "%s: %s\n", p.Name, strings.ReplaceAll(Redact(err.Error()), "\n", "; "))
		}
		if len(data) == 0 && err != nil {
			continue
		}
		if err := add(p.Name, data); err != nil {
			return err
		}
	}
	if complaints.Len() == 0 {
		complaints.WriteString("none\n")
	}
	if err := add("errors.txt", []byte(complaints.String())); err != nil {
		return err
	}
	return errors.Join(archive.Close(), zipped.Close())
}

// collect runs a part and gives what it wrote, redacted; a part that does not heed its
// context is left behind.
func collect(ctx context.Context, p Part, most int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, PartTime)
	defer cancel()
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		b := &bounded{most: most}
		err := safely(func() error { return p.Write(ctx, b) })
		if b.full {
			err = errors.Join(errFull, err)
		}
		done <- result{[]byte(Redact(b.buf.String())), err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("it took too long: %w", ctx.Err())
	}
}

// safely makes an error of a panic: the rest of the bundle is worth having.
func safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return f()
}

// bounded keeps so many bytes and passes over the rest.
type bounded struct {
	buf  bytes.Buffer
	most int
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.buf.Len()
	if len(p) > room {
		b.full = true
		b.buf.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return b.buf.Write(p)
}
