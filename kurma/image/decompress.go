package image

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxWindow is how much of what is unpacked already a decompressor may have to keep, in bytes: what "xz -9" and "zstd --ultra -22" need at most is this and twice this.
const maxWindow = 128 << 20

// ratioFrom is how much may be unpacked before the ratio to what was read counts.
const ratioFrom = 64 << 20

// decompress reads through gzip, xz, bzip2, zstd or nothing, whichever the first bytes say. It fails with ErrInvalid past what the limits allow, and with the context.
func decompress(ctx context.Context, r io.Reader, limits Limits) (io.ReadCloser, error) {
	in := &counted{ctx: ctx, r: r}
	b := bufio.NewReaderSize(in, 64<<10)
	magic, err := b.Peek(32)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	out, closed, plain := io.Reader(b), func() {}, false
	is := func(s string) bool { return bytes.HasPrefix(magic, []byte(s)) }
	switch {
	case is("\x1f\x8b"):
		out, err = gzip.NewReader(b)
	case is("\xfd7zXZ\x00"):
		if err = checkDictionary(magic); err == nil {
			out, err = xz.NewReader(b)
		}
	case is("BZh"):
		out, err = bzip2.NewReader(b), nil
	case is("\x28\xb5\x2f\xfd"):
		var d *zstd.Decoder
		if d, err = zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err == nil {
			out, closed = d, d.Close
		}
	default:
		plain, err = true, nil
	}
	if err != nil {
		return nil, invalid("its compression: %v", err)
	}
	return &bounded{r: out, in: in, limits: limits, closed: closed, plain: plain}, nil
}

// checkDictionary refuses an xz whose first block wants a window above maxWindow. The library would make it at once.
func checkDictionary(magic []byte) error {
	const header = 12 // of the stream; the block's follows: its size, flags, two optional numbers, and the filters
	if len(magic) < header+3 || magic[header] == 0 {
		return nil // no block, or too short: the library says so
	}
	flags, rest := magic[header+1], magic[header+2:]
	for _, there := range []bool{flags&0x40 != 0, flags&0x80 != 0} {
		if there {
			_, n := binary.Uvarint(rest)
			if n <= 0 {
				return fmt.Errorf("its first block's header is not one")
			}
			rest = rest[n:]
		}
	}
	if len(rest) < 3 || rest[0] != 0x21 || rest[1] != 1 {
		return fmt.Errorf("an xz filter other than LZMA2")
	}
	bits := rest[2]
	if size := uint64(2|bits&1) << (bits/2 + 11); bits > 40 || size > maxWindow {
		return fmt.Errorf("its dictionary is larger than %d bytes", maxWindow)
	}
	return nil
}

// counted counts what was read of r, and ends with its context.
type counted struct {
	ctx context.Context
	r   io.Reader
	n   int64
}

func (c *counted) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded is what is in an archive, until it is more than the limits allow.
type bounded struct {
	r      io.Reader
	in     *counted
	n      int64
	limits Limits
	closed func()
	plain  bool // nothing is unpacked
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	// A tar has a header and padding for each entry besides the bytes of files.
	if b.n > b.limits.Unpacked+b.limits.Entries*2048 {
		return n, invalid("it unpacks to more than %d bytes", b.limits.Unpacked)
	}
	if b.n > ratioFrom && b.n/b.limits.Ratio > b.in.n {
		return n, invalid("it unpacks to more than %d times its size", b.limits.Ratio)
	}
	if err != nil && !errors.Is(err, io.EOF) && b.in.ctx.Err() == nil {
		err = invalid("it cannot be read: %v", err)
	}
	return n, err
}

// Close ends the decompression.
func (b *bounded) Close() error {
	b.closed()
	return nil
}
