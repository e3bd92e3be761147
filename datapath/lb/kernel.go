//go:build linux

package lb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

const (
	// chunk is how many elements go into one message: an attribute's length has 16 bits.
	chunk = 250
	// bufferSize is how much one transaction, which is one message to the kernel, and its answers may take. It is a limit; memory is taken as it is used.
	bufferSize = 256 << 20
)

// kernel is the tables in one namespace.
type kernel struct {
	name   string
	bridge bool // is there to be one in the bridge family, too
	sets   []nftables.Set
	chains []nft.Chain
	family map[string]nftables.TableFamily // by set
	base   base
	nft    *nftables.Conn
	flows  conntrack
}

func openKernel(c Config) (*kernel, error) {
	k := &kernel{name: c.name(), bridge: c.Bridges != "", base: base{c}, family: map[string]nftables.TableFamily{}}
	k.sets, k.chains = k.base.sets(), k.base.chains()
	for _, s := range k.sets {
		k.family[s.Name] = nftables.TableFamilyINet
	}
	for _, s := range bridgeSets() {
		k.family[s.Name] = nftables.TableFamilyBridge
	}
	err := c.run(func() (err error) {
		k.nft, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
			return errors.Join(s.SetWriteBuffer(bufferSize), s.SetReadBuffer(bufferSize), longMessages(s))
		}))
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		if k.flows.Conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return fmt.Errorf("connection tracking: %w", err)
		}
		return nil
	})
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// longMessages has the kernel answer in messages as long as they may be: it makes them as long as what was received was allowed to be at most. To go on with a listing it passes all that was
// listed before, so that the fewer there are the better.
func longMessages(c *netlink.Conn) error {
	const longest, getGeneration = 32 << 10, 16 // NFT_MSG_GETGEN, the smallest question (linux/netfilter/nf_tables.h)
	_, err := c.Send(netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | getGeneration, Flags: netlink.Request}, Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}})
	if err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var received error
	err = raw.Read(func(fd uintptr) bool {
		_, _, received = unix.Recvfrom(int(fd), make([]byte, longest), 0)
		return !errors.Is(received, unix.EAGAIN)
	})
	return errors.Join(err, received)
}

func (k *kernel) close() {
	if k.nft != nil {
		_ = k.nft.CloseLasting() // there is nothing to lose
	}
	if k.flows.Conn != nil {
		_ = k.flows.Close()
	}
}

func (k *kernel) in(f nftables.TableFamily) nft.Table {
	return nft.Table{Name: k.name, Family: f, Words: true}
}

func (k *kernel) table(f nftables.TableFamily) *nftables.Table { return k.in(f).Ref() }

// families are those with a table.
func (k *kernel) families() []nftables.TableFamily {
	if k.bridge {
		return []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge}
	}
	return []nftables.TableFamily{nftables.TableFamilyINet}
}

// fixed is what a family's table always has.
func (k *kernel) fixed(f nftables.TableFamily) ([]nftables.Set, []nft.Chain) {
	if f == nftables.TableFamilyBridge {
		return bridgeSets(), bridgeChains()
	}
	return k.sets, k.chains
}

func (k *kernel) isFixed(chain string) bool {
	for _, c := range k.chains {
		if c.Name == chain {
			return true
		}
	}
	return false
}

// lead is a profile as the kernel has it.
type lead struct {
	kind
	profile
}

func (l lead) name() string { return l.kind.lead(l.profile) }

// element is what leads packets to the profile's chain; its value is no data, but that chain.
func (l lead) element() element {
	return element{set: l.profiles(), key: string(nft.Word(uint32(l.profile)))}
}

// chainsOf are those that a profile needs beside the fixed ones. That which remembers is shared with other profiles.
func (k *kernel) chainsOf(l lead) []nft.Chain {
	list := []nft.Chain{l.leadChain(l.profile)}
	if l.timeout() > 0 {
		list = append(list, l.keepChain(k.base, l.profile))
	}
	return list
}

// change is what one transaction does.
type change struct {
	replace     bool                   // the tables are made anew, and what is added is alone in them
	old         []nftables.TableFamily // those with a table that is replaced
	mend        []placed               // chains whose rules are made anew
	leads       []lead                 // to make
	chains      map[string]bool        // those that are there
	remove, add []element              // in this order
}

func (c *change) empty() bool {
	return !c.replace && len(c.mend)+len(c.leads)+len(c.remove)+len(c.add) == 0
}

// placed is a chain of a family's table.
type placed struct {
	nftables.TableFamily
	nft.Chain
}

// commit makes a change, all or nothing. Only where there is no room for more endpoints that went, these are left out.
func (k *kernel) commit(ctx context.Context, c *change) error {
	err := k.try(ctx, c)
	if !errors.Is(err, unix.ENFILE) {
		return err
	}
	k.base.log().Warn("too many endpoints went of late: connections to those that go now, from their own bridge, end", "table", k.name)
	c.add = slices.DeleteFunc(c.add, func(e element) bool { return strings.HasPrefix(e.set, "left") })
	return k.try(ctx, c)
}

func (k *kernel) try(ctx context.Context, c *change) error {
	if err := ctx.Err(); err != nil || c.empty() {
		return err
	}
	if c.replace {
		for _, f := range c.old {
			k.nft.DelTable(k.table(f))
		}
		for _, f := range k.families() {
			if err := k.create(f); err != nil {
				return err
			}
		}
	}
	for _, m := range c.mend {
		k.nft.FlushChain(&nftables.Chain{Name: m.Name, Table: k.table(m.TableFamily)})
		if err := k.addRules(m.TableFamily, m.Chain); err != nil {
			return err
		}
	}
	if err := k.queue(c.remove, k.nft.SetDeleteElements); err != nil {
		return err
	}
	if err := k.addLeads(c); err != nil {
		return err
	}
	if err := k.queue(c.add, k.nft.SetAddElements); err != nil {
		return err
	}
	return k.flush(len(c.remove) + len(c.leads) + len(c.add))
}

// flush has the kernel do what was queued, which changes so many elements.
func (k *kernel) flush(elements int) error {
	began := time.Now()
	err := k.nft.Flush()
	if err != nil {
		err = fmt.Errorf("nft table %s: %w", k.name, err)
	}
	if k.base.Observe != nil {
		k.base.Observe(Transaction{Elements: elements, Took: time.Since(began), Err: err})
	}
	return err
}

// create makes the fixed part of a family's table: all chains first, as rules go to chains that come later.
func (k *kernel) create(f nftables.TableFamily) error {
	k.nft.AddTable(k.table(f))
	sets, chains := k.fixed(f)
	for i, s := range sets {
		s.Table, s.ID = k.table(f), uint32(i+1) // chosen here, as the library numbers sets by a variable that all connections share
		if err := k.nft.AddSet(&s, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return k.addChains(f, chains)
}

func (k *kernel) addChains(f nftables.TableFamily, list []nft.Chain) error {
	for _, c := range list {
		n := &nftables.Chain{Name: c.Name, Table: k.table(f), Type: c.Type, Hooknum: c.Hook}
		if c.Hook != nil {
			n.Priority = &c.Priority
		}
		k.nft.AddChain(n)
	}
	for _, c := range list {
		if err := k.addRules(f, c); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) addRules(f nftables.TableFamily, c nft.Chain) error {
	for _, r := range c.Rules {
		stamp, err := k.in(f).Stamp(r)
		if err != nil {
			return err
		}
		k.nft.AddRule(&nftables.Rule{
			Table: k.table(f), Chain: &nftables.Chain{Name: c.Name, Table: k.table(f)}, Exprs: r.Exprs,
			UserData: userdata.AppendString(nil, userdata.TypeComment, stamp),
		})
	}
	return nil
}

func (k *kernel) addLeads(c *change) error {
	made := map[string]bool{}
	var list []nft.Chain
	for _, l := range c.leads {
		for _, ch := range k.chainsOf(l) {
			if !c.chains[ch.Name] && !made[ch.Name] {
				made[ch.Name] = true
				list = append(list, ch)
			}
		}
	}
	if err := k.addChains(nftables.TableFamilyINet, list); err != nil {
		return err
	}
	for _, l := range c.leads {
		e := []nftables.SetElement{{Key: []byte(l.element().key), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: l.name()}}}
		if err := k.nft.SetAddElements(&nftables.Set{Table: k.table(nftables.TableFamilyINet), Name: l.profiles(), IsMap: true}, e); err != nil {
			return fmt.Errorf("set %s: %w", l.profiles(), err)
		}
	}
	return nil
}

// tidy takes away elements of profiles that no frontend has, and then chains that nothing leads to but each other. It is a transaction of its own, after that which
// changed the frontends: a packet may have looked up a frontend before the one, and look for its profile after it.
func (k *kernel) tidy(ctx context.Context, unused []element, chains []string) error {
	if len(unused)+len(chains) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := k.queue(unused, k.nft.SetDeleteElements); err != nil {
		return err
	}
	for _, name := range chains {
		k.nft.FlushChain(&nftables.Chain{Name: name, Table: k.table(nftables.TableFamilyINet)})
	}
	for _, name := range chains {
		k.nft.DelChain(&nftables.Chain{Name: name, Table: k.table(nftables.TableFamilyINet)})
	}
	return k.flush(len(unused))
}

func (k *kernel) queue(list []element, call func(*nftables.Set, []nftables.SetElement) error) error {
	bySet := map[string][]nftables.SetElement{}
	for _, e := range list {
		bySet[e.set] = append(bySet[e.set], nftables.SetElement{Key: []byte(e.key), KeyEnd: []byte(e.end), Val: []byte(e.value)})
	}
	for _, name := range sortedKeys(bySet) {
		s := &nftables.Set{Table: k.table(k.family[name]), Name: name, IsMap: isMap(name)}
		for part := range slices.Chunk(bySet[name], chunk) {
			if err := call(s, part); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
	}
	return nil
}

// isMap tells by a set's name whether it is a map.
func isMap(set string) bool {
	for _, prefix := range []string{"service", "endpoint", "pick", "client", "profile"} {
		if strings.HasPrefix(set, prefix) {
			return true
		}
	}
	return false
}

// remove deletes the tables; absent is fine.
func (k *kernel) remove(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tables, err := k.nft.ListTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == k.name && (t.Family == nftables.TableFamilyINet || t.Family == nftables.TableFamilyBridge) {
			k.nft.DelTable(k.table(t.Family))
		}
	}
	if err := k.nft.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nft table %s: %w", k.name, err)
	}
	return nil
}
