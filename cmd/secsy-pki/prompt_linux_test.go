package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A person sits at a terminal.
type person struct {
	keyboard *os.File // and screen
	terminal string
}

func newPerson(t *testing.T) person {
	t.Helper()
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return person{f, fmt.Sprintf("/dev/pts/%d", n)}
}

// echoes reports whether the person sees what is typed.
func (p person) echoes(t *testing.T) bool {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(p.keyboard.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return s.Lflag&unix.ECHO != 0
}

type answer struct {
	secret []byte
	err    error
}

// asked starts to ask, and returns once nothing is shown any more.
func (p person) asked(ctx context.Context, t *testing.T) <-chan answer {
	t.Helper()
	got := make(chan answer, 1)
	go func() {
		secret, err := promptOn(ctx, p.terminal, "PIN of token a\x1b[31m")
		got <- answer{secret, err}
	}()
	for p.echoes(t) && len(got) == 0 {
		runtime.Gosched()
	}
	return got
}

func TestWhatIsTypedIsNotShown(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	got := p.asked(t.Context(), t)
	if _, err := p.keyboard.WriteString("47 11\n"); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.err != nil || string(a.secret) != "47 11" {
		t.Errorf("got %q, %v", a.secret, a.err)
	}
	if screen, err := bufio.NewReader(p.keyboard).ReadString('\n'); err != nil || strings.TrimSpace(screen) != "PIN of token a?[31m:" {
		t.Errorf("the screen shows %q, %v", screen, err)
	}
	if !p.echoes(t) {
		t.Error("what is typed afterwards is not shown either")
	}
}

func TestAnInterruptedPromptLeavesTheTerminalAsItWas(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := p.asked(ctx, t)
	cancel()
	if a := <-got; !errors.Is(a.err, context.Canceled) {
		t.Errorf("got %q, %v", a.secret, a.err)
	}
	if !p.echoes(t) {
		t.Error("what is typed is not shown any more")
	}
}

func TestWithoutTerminalNobodyIsAsked(t *testing.T) {
	t.Parallel()
	for _, file := range []string{os.DevNull, "/dev/absent"} {
		if _, err := promptOn(t.Context(), file, "PIN"); err == nil || !strings.HasPrefix(err.Error(), "no terminal to ask on for the PIN: ") {
			t.Errorf("%s: %v", file, err)
		}
	}
}
