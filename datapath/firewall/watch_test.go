//go:build linux

package firewall

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// message builds a notification about an object in a table.
func message(kind uint16, family byte, table string) []byte {
	b := make([]byte, unix.NLMSG_HDRLEN, 64)
	b = append(b, family, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(table)+1))
	b = binary.NativeEndian.AppendUint16(b, 1)
	b = append(append(b, table...), 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.NFNL_SUBSYS_NFTABLES<<8|kind)
	return b
}

func TestConcerns(t *testing.T) {
	t.Parallel()
	ours := message(unix.NFT_MSG_NEWRULE, unix.NFPROTO_INET, "kuryr")
	gone := message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, "kuryr")
	flush := message(unix.NFT_MSG_DELRULE, unix.NFPROTO_IPV4, "filter")
	for _, c := range []struct {
		name       string
		text       []byte
		doors, own bool
	}{
		{"nothing", nil, false, false},
		{"our own table grows", ours, false, false},
		{"our own table goes", gone, false, true},
		{
			"a table of our name in another family goes",
			message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_IPV4, "kuryr"), false, false,
		},
		{"an element of our own table goes", message(unix.NFT_MSG_DELSETELEM, unix.NFPROTO_INET, "kuryr"), false, false},
		{"iptables -F", flush, true, false},
		{"ip6tables -P", message(unix.NFT_MSG_NEWCHAIN, unix.NFPROTO_IPV6, "filter"), true, false},
		{"firewalld", message(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, "firewalld"), true, false},
		{"a bridge's filter table", message(unix.NFT_MSG_NEWRULE, unix.NFPROTO_BRIDGE, "filter"), false, false},
		{"nat", message(unix.NFT_MSG_NEWRULE, unix.NFPROTO_IPV4, "nat"), false, false},
		{"a set's element", message(unix.NFT_MSG_NEWSETELEM, unix.NFPROTO_IPV4, "filter"), false, false},
		{"one of many", append(append([]byte{}, ours...), flush...), true, false},
		{"nft flush ruleset", append(append([]byte{}, gone...), flush...), true, true},
		{"cut off", flush[:len(flush)-8], true, true},
	} {
		if doors, own := concerns(c.text); doors != c.doors || own != c.own {
			t.Errorf("%s: doors %v, own %v, want %v, %v", c.name, doors, own, c.doors, c.own)
		}
	}
}

func FuzzConcerns(f *testing.F) {
	f.Add(message(unix.NFT_MSG_NEWRULE, unix.NFPROTO_INET, "kuryr"))
	f.Add(message(unix.NFT_MSG_DELRULE, unix.NFPROTO_IPV4, "filter"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// A message that concerns us must be found whatever whole message comes before it.
		both := append(
			message(unix.NFT_MSG_NEWSET, unix.NFPROTO_INET, string(b)),
			message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_IPV6, "filter")...,
		)
		if doors, _ := concerns(both); !doors && len(b) < 1<<15 {
			t.Error("missed")
		}
		concerns(b)
	})
}

func TestDebounce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		events int
		gap    time.Duration
		want   int
	}{
		{"one change", 1, 0, 1},
		{"a reload in many steps", 40, 10 * time.Millisecond, 1},
		{"two changes", 2, 10 * quiet, 2},
		{"a storm without end", 10_000, time.Millisecond, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				changed := make(chan struct{})
				go func() {
					for range c.events {
						changed <- struct{}{}
						time.Sleep(c.gap)
					}
				}()
				var d debounce
				defer d.stop()
				fired := 0
				for end := time.After(time.Minute); ; {
					select {
					case <-changed:
						d.event(time.Now())
						continue
					case <-d.fired():
						d.stop()
						fired++
						continue
					case <-end:
					}
					break
				}
				if fired != c.want {
					t.Errorf("fired %d times, want %d", fired, c.want)
				}
			})
		})
	}
}
