package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMain lets the binary of the test be the client that a bench starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == asClient {
		if err := client(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestTheLastLineIsTheResult(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-quick"}, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := regexp.MustCompile(`^RESULT admission refused_ns=[\d.]+ refused_allocs=\d+ tiers3_ns=[\d.]+ spray_ns=[\d.]+ bytes_per_key=[\d.]+ refused_neworder_2k_us=[\d.]+ refused_neworder_60k_us=[\d.]+$`)
	if last := lines[len(lines)-1]; !want.MatchString(last) {
		t.Errorf("the last line is %q", last)
	}
}

// What is compared must do the same: a burst, and then nothing until a token is
// due. Windows instead of buckets may let a little more in, never less.
func TestEverySubjectHoldsTheSameLimit(t *testing.T) {
	t.Parallel()
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			l, err := s.build(time.Hour, 10)
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			decide := l.worker()
			for _, key := range []netip.Addr{address(1), address(2)} {
				in := 0
				for range 100 {
					if decide(key, "") {
						in++
					}
				}
				if in != 10 {
					t.Errorf("%d of 100 requests were let in, want 10", in)
				}
			}
			if decide(address(1), address(1).String()) {
				t.Error("the address as text is another key")
			}
		})
	}
}

func TestACountOfResetKeysCountsOnlyFullBuckets(t *testing.T) {
	t.Parallel()
	tokens := map[netip.Addr]int{address(1): 0, address(2): 1, address(3): 2, address(4): 40}
	decide := func(a netip.Addr, _ string) bool {
		tokens[a]--
		return tokens[a] >= 0
	}
	if n := countReset(decide, []netip.Addr{address(1), address(2), address(3), address(4)}); n != 2 {
		t.Errorf("%d keys were reset, want the two that had tokens to spare", n)
	}
}

func TestAddressesComeOnce(t *testing.T) {
	t.Parallel()
	seen := make(map[netip.Addr]bool)
	for i := range 70_000 {
		seen[address(i)], seen[network(i)] = true, true
	}
	if len(seen) != 140_000 {
		t.Errorf("%d addresses, want 140,000", len(seen))
	}
	if seen[many[0]] {
		t.Error("a spray hits the keys that are looked at")
	}
}

func TestACostIsThatOfAllCalls(t *testing.T) {
	var keep [][]byte
	c := cost(100, 1, func(_, calls int) {
		for range calls {
			keep = append(keep[:0], make([]byte, 1<<10), make([]byte, 1<<10))
		}
	})
	if c.allocs < 2 || c.allocs > 2.5 {
		t.Errorf("%v allocations a call, want 2", c.allocs)
	}
	calls := make(chan int, 3)
	cost(10, 3, func(_, n int) { calls <- n })
	if a, b, c := <-calls, <-calls, <-calls; a+b+c != 9 {
		t.Errorf("three goroutines made %d, %d and %d of ten calls, want the same each", a, b, c)
	}
}
