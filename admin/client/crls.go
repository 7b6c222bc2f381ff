package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// A CRLStatus is what the server knows of one of its CRLs: the complete one of
// an issuer, that of a shard, or a delta to either.
type CRLStatus struct {
	Issuer     string `json:"issuer"` // id
	IssuerName string `json:"issuer_name"`
	Shard      int    `json:"shard,omitempty"` // 0: all that the issuer certified
	Delta      bool   `json:"delta,omitempty"`
	Path       string `json:"path"`          // below the address of the server
	URL        string `json:"url,omitempty"` // in certificates

	Number     int64      `json:"number"` // of the CRL that is served; 0: none yet, and what follows is missing
	Base       int64      `json:"base,omitempty"`
	ThisUpdate *time.Time `json:"this_update,omitempty"`
	NextUpdate *time.Time `json:"next_update,omitempty"`
	Entries    int        `json:"entries"`
	Octets     int64      `json:"octets"`
	SHA256     string     `json:"sha256,omitempty"`

	Building bool   `json:"building,omitempty"` // one is being built by this server now
	Read     int    `json:"read,omitempty"`     // so many entries of it have been read
	Trouble  string `json:"trouble,omitempty"`  // why the last attempt to build one failed
}

// CRLList is every CRL, or those that a request was about.
type CRLList struct {
	CRLs []CRLStatus `json:"crls"`
}

// A RebuildRequest says whose CRLs are to be built.
type RebuildRequest struct {
	Issuer string `json:"issuer,omitempty"` // name or id; empty: everybody's
}

// ListCRLs returns every CRL, those of one issuer together.
func (c *Client) ListCRLs(ctx context.Context) ([]CRLStatus, error) {
	var list CRLList
	err := c.get(ctx, "/crls", nil, &list)
	return list.CRLs, err
}

// RebuildCRLs has the complete CRLs of an issuer, or of all, be built soon, and
// returns them as they were before: they are there when their numbers have grown.
func (c *Client) RebuildCRLs(ctx context.Context, issuer string) ([]CRLStatus, error) {
	var list CRLList
	err := c.post(ctx, "/crls/rebuild", RebuildRequest{Issuer: issuer}, &list)
	return list.CRLs, err
}

// CRL writes the DER that is served at path to w, which is given it as it comes.
func (c *Client) CRL(ctx context.Context, path string, w io.Writer) error {
	u := url.URL{Scheme: "http", Host: "secsy-pki", Path: "/api/v1/crls/files" + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("making request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = resp.Body.Close() }() // all of it was read, or nobody wants the rest
	if resp.StatusCode != http.StatusOK {
		var b bytes.Buffer
		_, _ = io.Copy(&b, io.LimitReader(resp.Body, maxAnswer)) // what there is of it
		return problemOf(resp, b.Bytes())
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("reading %s from %s: %w", path, c.socket, err)
	}
	return nil
}
