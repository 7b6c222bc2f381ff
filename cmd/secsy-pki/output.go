package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print one JSON object a line, for programs")
}

// printJSON writes v as one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table writes rows in columns.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell = safe(cell); cell == "" {
				cell = "-"
			}
			if i > 0 {
				cell = "\t" + cell
			}
			if _, err := io.WriteString(t, cell); err != nil {
				return err
			}
		}
		if _, err := io.WriteString(t, "\n"); err != nil {
			return err
		}
	}
	return t.Flush()
}

// safe keeps what strangers chose from speaking to the terminal.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func warn(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, "secsy-pki: "+format+"\n", args...)
}
