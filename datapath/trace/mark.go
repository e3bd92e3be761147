//go:build linux

package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/prometheus/procfs"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// tablePrefix, the process's id and, from the second on, a number are the names of the
// tables: one whose socket was just closed may be there yet, since a process that is
// being started elsewhere has the socket too until it executes its program.
const tablePrefix = "kuryr-trace-"

var numbers atomic.Uint32

func tableNamed() string {
	name := tablePrefix + strconv.Itoa(os.Getpid())
	if n := numbers.Add(1); n > 1 {
		name += "." + strconv.FormatUint(uint64(n), 10)
	}
	return name
}

// early is before whatever else looks at a packet, connection tracking and defragmenting among it.
const early nftables.ChainPriority = -450

// marks are the tables in one namespace that switch tracing on for the probe and its answer.
type marks struct {
	conn *nft.Conn
	own  []nft.Table // those that do not go by themselves
}

// setMarks makes them. tap is the device of the container in a router's namespace, where
// frames are looked at too; "" elsewhere.
func setMarks(ns vns.NsHandle, p probe, tap string) (_ *marks, err error) {
	m := &marks{}
	if m.conn, err = nft.Dial(int(ns)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("nftables: %w", err), m.close())
		}
	}()
	name := tableNamed()
	x := nft.Begin(m.conn)
	inet, err := m.table(name, nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	chains := p.chains("", nftables.ChainHookPrerouting, nftables.ChainHookOutput)
	x.AddChains(inet, chains)
	if tap != "" {
		bridge, err := m.table(name, nftables.TableFamilyBridge)
		if err != nil {
			return nil, err
		}
		chains := p.chains(tap, nftables.ChainHookPrerouting)
		x.AddChains(bridge, chains)
	}
	return m, x.Commit()
}

// table makes a table that goes with the socket (Linux 5.12).
func (m *marks) table(name string, family nftables.TableFamily) (nft.Table, error) {
	t := nft.Table{Family: family, Name: name}
	add := func(flags nftables.TableFlags) error {
		m.conn.CreateTable(&nftables.Table{Family: family, Name: name, Flags: flags})
		return m.conn.Flush()
	}
	err := add(nftables.TableFlagOwner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		if err = add(0); err == nil {
			m.own = append(m.own, t)
		}
	}
	return t, err
}

// chains switch tracing on at hooks of a table.
func (p probe) chains(tap string, hooks ...*nftables.ChainHook) []nft.Chain {
	matches := []nft.Exprs{p.matches(p.mark())}
	switch p.Protocol { // an echo's answer has the same mark
	case unix.IPPROTO_TCP:
		matches = append(matches, p.matches(p.answerMark()))
	case unix.IPPROTO_UDP:
		matches = append(matches, p.matches(2, binary.BigEndian.AppendUint16(nil, p.source)))
	}
	if tap != "" {
		matches = append(matches, resolving(tap)...)
	}
	var list []nft.Chain
	for i, hook := range hooks {
		c := nft.Chain{Name: []string{"in", "out"}[i], Type: nftables.ChainTypeFilter, Hook: hook,
			Priority: early}
		for _, match := range matches {
			c.Add("", match, nft.Trace)
		}
		list = append(list, c)
	}
	return list
}

// matches fits the probe's protocol with so many bytes there in the transport header or behind it.
func (p probe) matches(at int, want []byte) nft.Exprs {
	return nft.Join(nft.Protocol(p.wire()), nft.Field(nft.TransportHeader, uint32(at), want...))
}

// resolving fits what the container asks and tells its neighbours.
func resolving(tap string) []nft.Exprs {
	rules := []nft.Exprs{nft.Join(nft.In(tap), nft.EtherType(unix.ETH_P_ARP))}
	for _, kind := range []byte{135, 136} {
		rules = append(rules, nft.Join(nft.In(tap), nft.Protocol(unix.IPPROTO_ICMPV6),
			nft.Field(nft.TransportHeader, 0, kind)))
	}
	return rules
}

// close removes the tables.
func (m *marks) close() error {
	for _, t := range m.own {
		m.conn.DelTable(t.Ref())
	}
	return errors.Join(m.conn.Flush(), m.conn.Close())
}

// Sweep removes from a namespace the tables of runs that were killed on a kernel that
// does not do it itself, and gives their names. Those of a process that lives stay.
func Sweep(ns vns.NsHandle) ([]string, error) {
	conn, err := nft.Dial(int(ns))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("nftables: list the tables: %w", err)
	}
	var gone []string
	for _, t := range tables {
		id, ours := strings.CutPrefix(t.Name, tablePrefix)
		id, _, _ = strings.Cut(id, ".")
		pid, err := strconv.Atoi(id)
		if !ours || err != nil || pid == os.Getpid() || alive(pid) {
			continue
		}
		conn.DelTable(t)
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return gone, fmt.Errorf("nftables: delete table %s: %w", t.Name, err)
		}
		gone = append(gone, t.Name)
	}
	return gone, nil
}

// alive reports whether a process runs. One that is dead and waits for its parent does not.
func alive(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := p.Stat()
	return err == nil && stat.State != "Z" && stat.State != "X"
}
