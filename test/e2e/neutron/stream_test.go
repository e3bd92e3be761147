//go:build e2e

package neutron_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// stream is a ping that goes on while something happens.
type stream struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// pingOn pings ten times a second from a network namespace of the host, which nsenter's
// arguments name, until lost is called.
func (h host) pingOn(to netip.Addr, namespace ...string) *stream {
	h.rig.Helper()
	argv := slices.Concat([]string{"nsenter"}, namespace, []string{"--", "ping", "-n", "-i", "0.1", to.String()})
	s := &stream{cmd: h.Command(context.Background(), argv...)}
	s.cmd.Stdout = &s.out
	if err := h.StartCommand(s.cmd); err != nil {
		h.rig.Fatal(err)
	}
	h.rig.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s
}

// pings is pingOn from within the container.
func (b box) pings(to netip.Addr) *stream {
	b.rig.Helper()
	return b.pingOn(to, "-t", b.pid, "-n")
}

// answer is a line of ping's that tells of an answer.
var answer = regexp.MustCompile(`(?m)^\d+ bytes from .*icmp_seq=(\d+)`)

// lost ends the ping and gives the numbers of those without an answer, of all before the
// last that had one: what is under way at the end is not lost.
func (s *stream) lost(r *rig) (numbers []int, sent int) {
	r.Helper()
	_ = s.cmd.Process.Signal(os.Interrupt)
	_ = s.cmd.Wait()
	answered := map[int]bool{}
	for _, m := range answer.FindAllStringSubmatch(s.out.String(), -1) {
		number, _ := strconv.Atoi(m[1])
		answered[number] = true
		sent = max(sent, number)
	}
	if sent == 0 {
		r.Fatalf("no ping was answered:\n%s", s.out.String())
	}
	for number := 1; number < sent; number++ {
		if !answered[number] {
			numbers = append(numbers, number)
		}
	}
	return numbers, sent
}

// interrupted tells whether more was lost than a switch in user space loses of anybody's:
// single packets whenever its ports or flows change, which the load sees to; of three
// hundred pings one, of either pair, and not the same ones. Who is plugged anew for a
// moment loses more, and in a row.
func interrupted(lost, control []int, sent int) bool {
	return len(lost) > len(control)+2+sent/100 || inRow(lost) > inRow(control)+2
}

// inRow is the length of the longest run of successive numbers.
func inRow(numbers []int) (longest int) {
	run := 0
	for i, n := range numbers {
		if i == 0 || n != numbers[i-1]+1 {
			run = 0
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

// pairs are two pairs of neighbours on one network and one pair of hosts, with the same
// security groups: two containers, and as the control two virtual machines, which Kuryr
// did not make and does not know. What the switches do they do to both.
type pairs struct {
	a, b           box
	va, vb         *neutronlab.VM
	boxes, control *stream
	seats          []string
}

func (p *pairs) begin() {
	p.seats = []string{p.a.seat(), p.b.seat()}
	p.control = p.a.pingOn(p.vb.Addrs[0].Addr(), "--net=/run/netns/"+p.va.Name)
	p.boxes = p.a.pings(p.b.ip4)
}

// end tells what was lost. It fails the test where the containers' pair lost more than
// the control and what happened is harmless, and where something was done to what carries
// the containers' packets and nobody should have.
func (p *pairs) end(r *rig, what string, harmless, untouched bool) {
	r.Helper()
	lost, sent := p.boxes.lost(r)
	others, controls := p.control.lost(r)
	r.Logf(
		"%s: lost %d of %d pings between containers, %d of %d of the control", what, len(lost),
		sent, len(others), controls,
	)
	if harmless && interrupted(lost, others, sent) {
		r.Errorf("%s: pings between running containers were lost, numbers %v; of the control %v", what, lost, others)
	}
	for i, b := range []box{p.a, p.b} {
		if now := b.seat(); untouched && now != p.seats[i] {
			r.Errorf("%s: something was done to container %s:\n%s\nbefore:\n%s", what, b.name, now, p.seats[i])
		}
	}
}

// seat is what carries a container's packets: its port in Neutron, and its link in the
// kernel and in the switch of its host. All of it changes when it is touched.
func (b box) seat() string {
	b.rig.Helper()
	port := b.port()
	tap := "tap" + port.ID()[:11]
	res := b.sh("sh", "-c", fmt.Sprintf("cd /sys/class/net/%s && echo index $(cat ifindex), "+
		"$(cat carrier_changes) changes of carrier, flags $(cat flags) && "+
		"ovs-vsctl --bare --columns=_uuid,ofport,link_resets,external_ids list Interface %s", tap, tap))
	if !res.OK() {
		b.rig.Fatal(res)
	}
	return fmt.Sprintf("revision %v, %s\n%s", port["revision_number"], port.Text("status"), res.Out())
}
