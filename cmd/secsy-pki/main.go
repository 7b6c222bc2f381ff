// Command secsy-pki is a public front end of a PKI: ACME, OCSP and CRLs from one
// program, and the command line of its operator.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main with everything it touches, and the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go watch(ctx, signals, cancel, func() {
		_, _ = fmt.Fprintln(stderr, "secsy-pki: stopped at once by a second signal")
		os.Exit(exitError)
	})
	return execute(ctx, args, stdin, stdout, stderr)
}

// once is how close signals are that mean the same: a supervisor tells the
// process and then its group, a terminal everybody.
const once = 500 * time.Millisecond

// watch ends the work at the first signal, and calls now at the next one that
// is not its echo, for when the first takes too long. It returns with the
// program, or when its work ends by itself.
func watch(ctx context.Context, signals <-chan os.Signal, cancel context.CancelFunc, now func()) {
	select {
	case <-signals:
		cancel()
	case <-ctx.Done():
		return
	}
	first := time.Now()
	for range signals {
		if time.Since(first) >= once {
			now()
			return
		}
	}
}

// hangups turns SIGHUP into words to reload. What comes while a reload is due
// already is the same reload.
func hangups(ctx context.Context) <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { signal.Stop(signals) })
	reload := make(chan struct{}, 1)
	go forward(ctx, signals, reload)
	return reload
}

func forward(ctx context.Context, signals <-chan os.Signal, reload chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		select {
		case reload <- struct{}{}:
		default:
		}
	}
}
