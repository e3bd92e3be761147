package docker

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestLocks(t *testing.T) {
	t.Parallel()
	var l locks
	var wg sync.WaitGroup
	counts := make([]int, 4)
	for range 200 {
		wg.Go(func() {
			i, j := rand.IntN(len(counts)), rand.IntN(len(counts))
			unlock, err := l.lock(t.Context(), string(rune('a'+i)), string(rune('a'+j)))
			if err != nil {
				t.Error(err)
				return
			}
			counts[i]++
			counts[j]++
			unlock()
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	if sum != 400 || l.named.Held() != 0 {
		t.Errorf("%d counted, %d locks left", sum, l.named.Held())
	}
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(ended, "A", "a"); err == nil {
		t.Error("a held lock was taken")
	}
	unlock()
	if l.named.Held() != 0 {
		t.Errorf("locks left: %v", l.named.Held())
	}
}
