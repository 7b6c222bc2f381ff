package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker ("make build"). Where it is not, the build
// information of the module says.
var version string

// A build says what this program was built from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`     // of the revision
	Modified bool   `json:"modified,omitempty"` // built from more than the revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	switch v := info.Main.Version; {
	case version != "":
		b.Version = version
	case v != "" && v != "(devel)":
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String is the build in one line.
func (b build) String() string {
	from := b.Revision
	if from != "" && b.Modified {
		from += " and changes"
	}
	if from != "" {
		from = "revision " + from + ", "
	}
	return fmt.Sprintf("secsy-pki %s (%s%s, %s)", b.Version, from, b.Go, b.Platform)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  secsy-pki version
  secsy-pki version --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, out := thisBuild(), cmd.OutOrStdout()
			if asJSON {
				return printJSON(out, b)
			}
			_, err := fmt.Fprintln(out, b)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
