package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

// socketEnv is the environment variable of --socket.
const socketEnv = "SECSY_SOCKET"

// patience bounds each command that asks the server, but for the long ones.
const patience = time.Minute

// A connection says which server the operator's commands ask.
type connection struct{ socket, config string }

// flags adds what names the server to a group of commands.
func (c *connection) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&c.socket, "socket", "", "operator `SOCKET` of the running server; or set "+socketEnv+"\n(default \"secsy-data/operator.sock\")")
	f.StringVar(&c.config, "config", "", "configuration `FILE` of the running server, which names its socket")
	_ = cmd.MarkPersistentFlagFilename("config", "yaml", "yml")
}

// path finds the socket: flags before environment before the place where
// quickstart and init put it.
func (c *connection) path() (string, error) {
	switch {
	case c.socket != "":
		return c.socket, nil
	case c.config != "":
		cfg, err := load(c.config)
		if err != nil {
			return "", err
		}
		return string(cfg.Listen.Operator.Socket), nil
	case os.Getenv(socketEnv) != "":
		return os.Getenv(socketEnv), nil
	}
	return filepath.Join(defaultDir, "operator.sock"), nil
}

// ask runs fn with a client, for no longer than limit.
func (c *connection) ask(ctx context.Context, limit time.Duration, fn func(context.Context, *client.Client) error) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cl := client.New(path)
	defer cl.Close()
	err = fn(ctx, cl)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer on %s within %s", path, limit)
	}
	return err
}

// parseSerial reads a serial number the way people have it from other tools:
// with colons, spaces, capitals, or 0x before it.
func parseSerial(s string) (string, error) {
	hex := strings.ToLower(strings.NewReplacer(":", "", " ", "", "-", "").Replace(s))
	hex = strings.TrimPrefix(hex, "0x")
	if hex == "" || len(hex) > 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%q is not a serial number: want hex digits such as 01ab… or 01:AB:…", s)
	}
	if len(hex)%2 == 1 {
		hex = "0" + hex
	}
	for len(hex) > 2 && strings.HasPrefix(hex, "00") {
		hex = hex[2:]
	}
	return hex, nil
}

// serialArg takes exactly one serial number.
func serialArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef(cmd, "want one serial number, got %d arguments", len(args))
	}
	if _, err := parseSerial(args[0]); err != nil {
		return &usageError{cmd, err}
	}
	return nil
}
