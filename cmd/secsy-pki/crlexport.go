package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newCRLExport(conn *connection) *cobra.Command {
	var e crlExport
	cmd := &cobra.Command{
		Use:   "export --dir DIR",
		Short: "Write the CRLs into a folder, for another web server or a CDN to serve",
		Long: `Write the CRLs into a folder, for another web server or a CDN to serve.

Each goes where the path of its address in certificates says: what certificates
look for at http://pki.example.org/crl/ID.crl is DIR/crl/ID.crl. A file is
replaced in one step, when all of the new one is on the disk, and only by a newer
CRL; its modification time is the CRL's thisUpdate.

The exit status is 0 when every file is current, and 1 when one could not be
written, is not there yet, or is of a CRL past its nextUpdate.`,
		Example: `  secsy-pki crl export --dir /var/www/pki
  secsy-pki crl export --dir /var/www/pki --issuer main --issuer device
  # every minute, and from there to a bucket:
  secsy-pki crl export --dir /srv/crl && rclone sync /srv/crl bucket:crl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.dir == "" {
				return usagef(cmd, "--dir is needed: the folder to write to")
			}
			return conn.ask(cmd.Context(), verifyPatience, func(ctx context.Context, cl *client.Client) error {
				e.cmd, e.cl = cmd, cl
				return e.run(ctx)
			})
		},
	}
	cmd.Flags().StringVar(&e.dir, "dir", "", "`FOLDER` to write to, the root of what is served")
	cmd.Flags().StringArrayVar(&e.issuers, "issuer", nil, "only those of this issuer, by `NAME` or id; may be given more than once")
	_ = cmd.MarkFlagDirname("dir")
	noFileCompletion(cmd, "issuer")
	return cmd
}

// A crlExport writes CRLs into a folder.
type crlExport struct {
	dir     string
	issuers []string // names or ids; empty: all
	cmd     *cobra.Command
	cl      *client.Client
}

func (e *crlExport) run(ctx context.Context) error {
	list, err := e.selected(ctx)
	if err != nil {
		return err
	}
	p := &progress{w: e.cmd.ErrOrStderr(), doing: "exporting, KiB", began: time.Now()}
	for _, c := range list {
		p.total += kib(c.Octets)
	}
	bad := 0
	for _, c := range list {
		if err := e.one(ctx, c, p); err != nil {
			warn(e.cmd.ErrOrStderr(), "exporting %s: %v", c.Path, err)
			bad++
		}
	}
	p.end()
	if bad > 0 {
		return fmt.Errorf("%d of %d CRLs are not as they should be", bad, len(list))
	}
	return nil
}

func (e *crlExport) selected(ctx context.Context) ([]client.CRLStatus, error) {
	list, err := e.cl.ListCRLs(ctx)
	if err != nil || len(e.issuers) == 0 {
		return list, err
	}
	for _, name := range e.issuers {
		if !slices.ContainsFunc(list, func(c client.CRLStatus) bool { return c.IssuerName == name || c.Issuer == name }) {
			return nil, fmt.Errorf("no issuer has the name or id %q", name)
		}
	}
	return slices.DeleteFunc(list, func(c client.CRLStatus) bool {
		return !slices.Contains(e.issuers, c.IssuerName) && !slices.Contains(e.issuers, c.Issuer)
	}), nil
}

func kib(octets int64) int { return int((octets + 1023) / 1024) }

// errMoved says that another CRL was published while one was being read.
var errMoved = errors.New("another one was published meanwhile, or it was damaged on the way")

// one writes a CRL, or one that took its place meanwhile.
func (e *crlExport) one(ctx context.Context, c client.CRLStatus, p *progress) error {
	err := e.try(ctx, c, p)
	for range 3 {
		if !errors.Is(err, errMoved) {
			break
		}
		list, lerr := e.cl.ListCRLs(ctx)
		if lerr != nil {
			return lerr
		}
		i := slices.IndexFunc(list, func(l client.CRLStatus) bool { return l.Path == c.Path })
		if i < 0 {
			return nil // it is needed no more
		}
		err = e.try(ctx, list[i], p)
	}
	return err
}

// try writes a CRL unless it is there. That a CRL has ended is an error, and it
// is written all the same: there is no better one.
func (e *crlExport) try(ctx context.Context, c client.CRLStatus, p *progress) error {
	if c.Number == 0 {
		return errors.New("the server has none yet")
	}
	file, err := e.file(c)
	if err != nil {
		return err
	}
	have, err := stateOf(file)
	if err != nil {
		return err
	}
	switch {
	case have.sum == c.SHA256:
		p.add(kib(c.Octets))
	case have.thisUpdate.After(*c.ThisUpdate):
		p.add(kib(c.Octets))
		warn(e.cmd.ErrOrStderr(), "%s is newer than what the server has, of %s: it stays", file, when(have.thisUpdate))
		return nil
	default:
		if err := e.replace(ctx, c, file, p); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(e.cmd.OutOrStdout(), "%s: number %d, %d entries, until %s\n", file, c.Number, c.Entries, whenPtr(c.NextUpdate))
	}
	if time.Now().After(*c.NextUpdate) {
		return fmt.Errorf("it has ended at %s, and the server has no other", whenPtr(c.NextUpdate))
	}
	return nil
}

// file is where the CRL belongs: where certificates look, or else where the
// server has it.
func (e *crlExport) file(c client.CRLStatus) (string, error) {
	path := c.Path
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil {
			return "", err
		}
		path = u.Path
	}
	local := strings.TrimPrefix(path, "/")
	if !filepath.IsLocal(local) || strings.HasSuffix(path, "/") {
		return "", fmt.Errorf("the path %q is no name for a file below %s", path, e.dir)
	}
	return filepath.Join(e.dir, local), nil
}

// A state is what a file in the folder holds.
type state struct {
	sum        string
	thisUpdate time.Time // zero: no CRL
}

func stateOf(file string) (state, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, nil
	}
	if err != nil {
		return state{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	var head bytes.Buffer
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(h, &head), f, 64<<10); err != nil && !errors.Is(err, io.EOF) {
		return state{}, err
	}
	if _, err := io.Copy(h, f); err != nil {
		return state{}, err
	}
	return state{hex.EncodeToString(h.Sum(nil)), thisUpdateOf(head.Bytes())}, nil
}

// thisUpdateOf reads the time of a CRL of which no more than the beginning is
// there; zero if it is none.
func thisUpdateOf(der []byte) time.Time {
	for range 2 { // into CertificateList and TBSCertList, which go on beyond der
		if len(der) < 2 || der[0] != 0x30 {
			return time.Time{}
		}
		head := 2
		if der[1] >= 0x80 {
			head += int(der[1] & 0x7f)
		}
		if len(der) < head {
			return time.Time{}
		}
		der = der[head:]
	}
	var v asn1.RawValue
	for range 3 { // version, signature, issuer
		rest, err := asn1.Unmarshal(der, &v)
		if err != nil {
			return time.Time{}
		}
		der = rest
	}
	var at time.Time
	if _, err := asn1.Unmarshal(der, &at); err != nil {
		return time.Time{}
	}
	return at
}

// replace writes the CRL beside the file, and gives it the file's name when all
// of it is right and on the disk.
func (e *crlExport) replace(ctx context.Context, c client.CRLStatus, file string, p *progress) (err error) {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".secsy-pki-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := e.fill(ctx, c, f, p); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Chtimes(f.Name(), time.Time{}, *c.ThisUpdate); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return err
	}
	return syncFolder(dir)
}

func (e *crlExport) fill(ctx context.Context, c client.CRLStatus, f *os.File, p *progress) error {
	h := sha256.New()
	if err := e.cl.CRL(ctx, c.Path, io.MultiWriter(f, h, &ticker{p: p})); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != c.SHA256 {
		return errMoved
	}
	return errors.Join(f.Chmod(0o644), f.Sync())
}

// A ticker counts octets in KiB.
type ticker struct {
	p    *progress
	left int64
}

func (t *ticker) Write(b []byte) (int, error) {
	t.left += int64(len(b))
	t.p.add(int(t.left / 1024))
	t.left %= 1024
	return len(b), nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
