package local

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// The file format of bbolt (its internal/common package, format version 2).
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	pageHeader     = 16 // id 8, flags 2, count 2, overflow 4
	metaSize       = 64
	branchElement  = 16 // pos 4, ksize 4, page 8
	leafElement    = 16 // flags 4, pos 4, ksize 4, vsize 4
	bucketHeader   = 16 // root 8, sequence 8
	branchPage     = 0x01
	leafPage       = 0x02
	metaPage       = 0x04
	bucketElement  = 0x01
	maxBucketDepth = 16 // ours are three deep
	maxPageDepth   = 64
)

// verify tells what is wrong with a bbolt file, or nil. bbolt itself maps the file and trusts it, so a truncated file would kill
// the process (SIGBUS) and a damaged page make it panic or loop; this reads the pages in use and checks that their structure can be
// trusted. It proves nothing about the values, which are checked as they are decoded.
func verify(file io.ReaderAt, size int64) error {
	v := verifier{file: file, size: size, seen: map[uint64]bool{}}
	root, err := v.meta()
	if err != nil {
		return err
	}
	return v.page(root, bounds{}, 0, 0)
}

// bounds are what keys of a page must keep: not below low, and below high unless that is nil.
type bounds struct{ low, high []byte }

func (b bounds) hold(k []byte) bool {
	return bytes.Compare(k, b.low) >= 0 && (b.high == nil || bytes.Compare(k, b.high) < 0)
}

type verifier struct {
	file     io.ReaderAt
	size     int64
	pageSize int64
	pages    uint64 // the first page id beyond the file in use
	seen     map[uint64]bool
}

// meta chooses the valid meta page with the higher transaction and returns the root page.
func (v *verifier) meta() (root uint64, err error) {
	if v.size < pageHeader+metaSize {
		return 0, fmt.Errorf("%d bytes are too few for a store: its header is not whole", v.size)
	}
	var newest uint64
	found := false
	// The second meta page is one page further; where the first is unreadable any usual page size may be right.
	for _, at := range []int64{0, 4096, 8192, 16384, 32768, 65536} {
		buf := make([]byte, pageHeader+metaSize)
		if at+int64(len(buf)) > v.size {
			break
		}
		if _, err := v.file.ReadAt(buf, at); err != nil {
			return 0, err
		}
		m := buf[pageHeader:]
		pageSize := int64(binary.NativeEndian.Uint32(m[8:]))
		sum := fnv.New64a()
		sum.Write(m[:56])
		if binary.NativeEndian.Uint16(buf[8:])&metaPage == 0 || binary.NativeEndian.Uint32(m) != boltMagic || binary.NativeEndian.Uint32(m[4:]) != boltVersion ||
			binary.NativeEndian.Uint64(m[56:]) != sum.Sum64() || pageSize < 1024 || pageSize > 1<<20 || at != 0 && at != pageSize {
			continue
		}
		if txid := binary.NativeEndian.Uint64(m[48:]); !found || txid > newest {
			found, newest = true, txid
			v.pageSize, root, v.pages = pageSize, binary.NativeEndian.Uint64(m[16:]), binary.NativeEndian.Uint64(m[40:])
		}
	}
	if !found {
		return 0, fmt.Errorf("it has no valid header (is it a Kuryr store?)")
	}
	if v.pages > uint64(v.size/v.pageSize) {
		return 0, fmt.Errorf("it is cut off: %d bytes of at least %d", v.size, int64(v.pages)*v.pageSize)
	}
	return root, nil
}

// page checks the tree below page id, which is in a bucket at the given depth.
func (v *verifier) page(id uint64, within bounds, bucketDepth, pageDepth int) error {
	if id < 2 || id >= v.pages {
		return fmt.Errorf("page %d does not exist", id)
	}
	if v.seen[id] {
		return fmt.Errorf("page %d is used twice", id)
	}
	v.seen[id] = true
	header := make([]byte, pageHeader)
	if _, err := v.file.ReadAt(header, int64(id)*v.pageSize); err != nil {
		return err
	}
	if have := binary.NativeEndian.Uint64(header); have != id {
		return fmt.Errorf("page %d says it is %d", id, have)
	}
	overflow := uint64(binary.NativeEndian.Uint32(header[12:]))
	if overflow >= v.pages-id {
		return fmt.Errorf("page %d is longer than the file", id)
	}
	for i := id + 1; i <= id+overflow; i++ {
		if v.seen[i] {
			return fmt.Errorf("page %d is used twice", i)
		}
		v.seen[i] = true
	}
	data := make([]byte, int64(overflow+1)*v.pageSize)
	if _, err := v.file.ReadAt(data, int64(id)*v.pageSize); err != nil {
		return err
	}
	if err := v.elements(data, within, bucketDepth, pageDepth); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements checks what is on a page, or in an inline bucket.
func (v *verifier) elements(data []byte, within bounds, bucketDepth, pageDepth int) error {
	flags, count := binary.NativeEndian.Uint16(data[8:]), int(binary.NativeEndian.Uint16(data[10:]))
	if flags != branchPage && flags != leafPage || pageDepth > maxPageDepth || flags == branchPage && count == 0 {
		return fmt.Errorf("it is no page of a tree")
	}
	if pageHeader+count*leafElement > len(data) {
		return fmt.Errorf("%d elements do not fit", count)
	}
	var below *bounds // of the page of the branch element before
	var child uint64
	var last []byte
	for i := range count {
		at := pageHeader + i*leafElement
		e := data[at:]
		var pos, keySize, valueSize uint64
		if flags == branchPage {
			pos, keySize = uint64(binary.NativeEndian.Uint32(e)), uint64(binary.NativeEndian.Uint32(e[4:]))
		} else {
			pos, keySize, valueSize = uint64(binary.NativeEndian.Uint32(e[4:])), uint64(binary.NativeEndian.Uint32(e[8:])), uint64(binary.NativeEndian.Uint32(e[12:]))
		}
		start := uint64(at) + pos
		if pos < leafElement || start+keySize+valueSize > uint64(len(data)) {
			return fmt.Errorf("element %d is out of bounds", i)
		}
		k := data[start : start+keySize]
		if i > 0 && string(last) >= string(k) || !within.hold(k) {
			return fmt.Errorf("element %d is out of order", i)
		}
		last = k
		switch {
		case flags == branchPage:
			// A child's keys end where the next one's begin.
			if below != nil {
				below.high = k
				if err := v.page(child, *below, bucketDepth, pageDepth+1); err != nil {
					return err
				}
			}
			child, below = binary.NativeEndian.Uint64(e[8:]), &bounds{low: k, high: within.high}
		case binary.NativeEndian.Uint32(e)&bucketElement != 0:
			if err := v.bucket(data[start+keySize:start+keySize+valueSize], bucketDepth+1); err != nil {
				return fmt.Errorf("bucket %q: %w", k, err)
			}
		}
	}
	if below != nil {
		return v.page(child, *below, bucketDepth, pageDepth+1)
	}
	return nil
}

func (v *verifier) bucket(value []byte, depth int) error {
	if depth > maxBucketDepth || len(value) < bucketHeader {
		return fmt.Errorf("it is no bucket")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return v.page(root, bounds{}, depth, 0)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || binary.NativeEndian.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("its inline page is no leaf")
	}
	return v.elements(inline, bounds{}, depth, 0)
}
