package client

import (
	"context"
	"net/url"
	"time"
)

// DefaultDirectory is the name of the ACME directory that every server has.
const DefaultDirectory = "default"

// How a key of an external account stands.
const (
	KeyUsable  = "usable"
	KeyUsed    = "used" // as often as it may be
	KeyExpired = "expired"
	KeyRevoked = "revoked"
)

// AccountValid is the status of an account that may be used.
const AccountValid = "valid"

// AccountStatuses are what an AccountFilter can ask for: deactivated is by the
// account itself, revoked by an operator.
func AccountStatuses() []string { return []string{AccountValid, "deactivated", "revoked"} }

// A NewExternalKey is the body of a request for a key that binds new ACME
// accounts to an account elsewhere (RFC 8555 §7.3.4).
type NewExternalKey struct {
	Directory string     `json:"directory,omitempty"` // empty: DefaultDirectory
	Comment   string     `json:"comment,omitempty"`
	DNS       []string   `json:"dns,omitempty"`      // domains that its accounts may order, with all below
	IP        []string   `json:"ip,omitempty"`       // addresses and ranges that they may order; without dns and ip: everything
	Profiles  []string   `json:"profiles,omitempty"` // that they may order; none: all
	Expires   *time.Time `json:"expires,omitempty"`
	MaxUses   int        `json:"max_uses"` // accounts that it binds; 0: any number
}

// An ExternalKey binds new ACME accounts to an account elsewhere.
type ExternalKey struct {
	KID        string     `json:"kid"`
	MACKey     string     `json:"mac_key,omitempty"` // base64url; in the answer to its creation, and never again
	Directory  string     `json:"directory"`
	Status     string     `json:"status"` // usable, used, expired or revoked
	Comment    string     `json:"comment,omitempty"`
	DNS        []string   `json:"dns,omitempty"`
	IP         []string   `json:"ip,omitempty"`
	Profiles   []string   `json:"profiles,omitempty"`
	Expires    *time.Time `json:"expires,omitempty"`
	MaxUses    int        `json:"max_uses"` // 0: any number
	Uses       int        `json:"uses"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	CreatedBy  string     `json:"created_by"`
	CreatedAt  time.Time  `json:"created_at"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
}

// An ExternalKeyPage is a part of a list, newest first. An empty Next says that
// it is the last one.
type ExternalKeyPage struct {
	Keys []ExternalKey `json:"keys"`
	Next string        `json:"next,omitempty"`
}

// An ExternalKeyFilter selects keys. Zero fields select everything.
type ExternalKeyFilter struct {
	Directory string
	Limit     int    // of one page; 0: 50, at most 500
	Cursor    string // Next of the page before
}

// An ExternalKeyRevocation is the body of a request to revoke a key.
type ExternalKeyRevocation struct {
	RevokeAccounts bool `json:"revoke_accounts"` // those that are bound by it, too
}

// A RevokedExternalKey is a key that was revoked.
type RevokedExternalKey struct {
	ExternalKey
	AccountsRevoked int `json:"accounts_revoked"`
}

// An Account is an ACME account.
type Account struct {
	ID          string     `json:"id"` // the last part of its URL
	Directory   string     `json:"directory"`
	Status      string     `json:"status"` // one of AccountStatuses
	Contacts    []string   `json:"contacts,omitempty"`
	Thumbprint  string     `json:"key_thumbprint"`
	ExternalKey string     `json:"external_key,omitempty"` // the id of the key that it is bound by
	CreatedAt   time.Time  `json:"created_at"`
	RevokedAt   *time.Time `json:"revoked_at,omitempty"`
	OpenOrders  *int       `json:"open_orders,omitempty"` // only where one account was asked for
}

// An AccountPage is a part of a list, newest first. An empty Next says that it
// is the last one.
type AccountPage struct {
	Accounts []Account `json:"accounts"`
	Next     string    `json:"next,omitempty"`
}

// An AccountFilter selects accounts. Zero fields select everything.
type AccountFilter struct {
	Directory   string
	Status      string // one of AccountStatuses
	ExternalKey string // bound by the key with this id
	Limit       int    // of one page; 0: 50, at most 500
	Cursor      string // Next of the page before
}

// CreateExternalKey makes a key. What it returns is the only answer that has
// the MAC key.
func (c *Client) CreateExternalKey(ctx context.Context, n NewExternalKey) (ExternalKey, error) {
	var k ExternalKey
	err := c.post(ctx, "/acme/external-keys", n, &k)
	return k, err
}

// ListExternalKeys returns one page of keys, newest first.
func (c *Client) ListExternalKeys(ctx context.Context, f ExternalKeyFilter) (ExternalKeyPage, error) {
	q := query{}
	q.text("directory", f.Directory)
	q.number("limit", int64(f.Limit))
	q.text("cursor", f.Cursor)
	var page ExternalKeyPage
	err := c.get(ctx, "/acme/external-keys", q, &page)
	return page, err
}

// RevokeExternalKey makes a key bind nobody any more, and revokes the accounts
// that it bound if told so.
func (c *Client) RevokeExternalKey(ctx context.Context, kid string, accounts bool) (RevokedExternalKey, error) {
	var k RevokedExternalKey
	err := c.post(ctx, "/acme/external-keys/"+url.PathEscape(kid)+"/revoke", ExternalKeyRevocation{RevokeAccounts: accounts}, &k)
	return k, err
}

// ListAccounts returns one page of ACME accounts, newest first.
func (c *Client) ListAccounts(ctx context.Context, f AccountFilter) (AccountPage, error) {
	q := query{}
	q.text("directory", f.Directory)
	q.text("status", f.Status)
	q.text("external_key", f.ExternalKey)
	q.number("limit", int64(f.Limit))
	q.text("cursor", f.Cursor)
	var page AccountPage
	err := c.get(ctx, "/acme/accounts", q, &page)
	return page, err
}

// Account returns one ACME account.
func (c *Client) Account(ctx context.Context, id string) (Account, error) {
	var a Account
	err := c.get(ctx, "/acme/accounts/"+url.PathEscape(id), nil, &a)
	return a, err
}

// RevokeAccount ends an ACME account and its open orders. Its certificates stay.
func (c *Client) RevokeAccount(ctx context.Context, id string) (Account, error) {
	var a Account
	err := c.post(ctx, "/acme/accounts/"+url.PathEscape(id)+"/revoke", struct{}{}, &a)
	return a, err
}
