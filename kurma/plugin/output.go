//go:build linux

package plugin

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput bounds the file of what a main executable has written: when it is full it becomes the older half, and that half is forgotten.
const maxOutput = 256 << 10

// output keeps what a main executable writes. That goes through a pipe with a name, which the container holds open at both ends: so the plugin does not
// notice that the daemon ends, and the next one reads on.
type output struct {
	fifo *os.File
	path string
	done chan struct{}

	mu   sync.Mutex
	file *os.File
	size int64
}

func openOutput(fifo, path string) (*output, error) {
	pipe, err := os.OpenFile(fifo, os.O_RDWR, 0) // at both ends here too: it has no end, and waits for nobody
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		_ = pipe.Close()
		return nil, fmt.Errorf("output: %w", err)
	}
	o := &output{fifo: pipe, path: path, file: file, done: make(chan struct{})}
	if info, err := file.Stat(); err == nil {
		o.size = info.Size()
	}
	go o.read()
	return o, nil
}

func (o *output) read() {
	defer close(o.done)
	buf := make([]byte, 16<<10)
	for {
		n, err := o.fifo.Read(buf)
		o.keep(buf[:n])
		if err != nil {
			return
		}
	}
}

// keep appends to the file. A full disk loses output, and nothing else.
func (o *output) keep(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.size+int64(len(b)) > maxOutput {
		if os.Rename(o.path, o.path+".1") == nil {
			if file, err := os.OpenFile(o.path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
				_ = o.file.Close()
				o.file, o.size = file, 0
			}
		}
	}
	n, _ := o.file.Write(b)
	o.size += int64(n)
}

// close takes what is in the pipe still, and ends.
func (o *output) close() {
	_ = o.fifo.SetReadDeadline(time.Unix(1, 0))
	<-o.done
	if raw, err := o.fifo.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			buf := make([]byte, 64<<10)
			for range 16 { // as much as the largest pipe holds by default: a child may be writing for ever
				n, err := unix.Read(int(fd), buf) // it does not block: the runtime has made it so
				if n <= 0 || err != nil {
					return
				}
				o.keep(buf[:n])
			}
		})
	}
	_ = o.fifo.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.file.Close()
}

// tail is the end of a file.
func tail(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, os.ErrInvalid)
	}
	return io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-most), most))
}
