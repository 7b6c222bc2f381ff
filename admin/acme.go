package admin

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// DefaultDirectory is what operators call the ACME directory that every server has.
const DefaultDirectory = client.DefaultDirectory

var (
	// ErrNotFound says that there is no such ACME account, or key of an external one.
	ErrNotFound = errors.New("admin: no such object")
	// ErrEnded says that it was revoked or deactivated already.
	ErrEnded = errors.New("admin: the object has ended already")
)

// A Directory is an ACME directory that is served.
type Directory struct {
	Name     string // "" is the one that every server has
	Binds    bool   // it takes keys of external accounts
	Profiles []string
}

// An ExternalKey binds new ACME accounts to an account elsewhere (RFC 8555 §7.3.4).
type ExternalKey struct {
	KID        string
	Directory  string
	MAC        []byte // only to be stored: no list shows it
	Comment    string
	DNS        []string // domains that its accounts may order, with all below; without DNS and IP: everything
	IP         []netip.Prefix
	Profiles   []string // that its accounts may order; none: all
	CreatedBy  string
	CreatedAt  time.Time
	Expires    time.Time // zero: never
	MaxUses    int       // 0: any number
	Uses       int
	LastUsedAt time.Time
	RevokedAt  time.Time
}

// Status is the one word for how a key stands.
func (k ExternalKey) Status(now time.Time) string {
	switch {
	case !k.RevokedAt.IsZero():
		return client.KeyRevoked
	case k.MaxUses > 0 && k.Uses >= k.MaxUses:
		return client.KeyUsed
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return client.KeyExpired
	}
	return client.KeyUsable
}

// A KeyQuery selects keys, newest first.
type KeyQuery struct {
	Directory *string // nil: of all
	Before    string  // the cursor of the page before
	Limit     int
}

// ExternalKeys keeps keys of external accounts. It is safe for concurrent use,
// and each entry is in the same transaction as its fact.
type ExternalKeys interface {
	CreateExternalKey(ctx context.Context, k ExternalKey, e audit.Entry) error
	// ListExternalKeys returns a page without the MACs, and the cursor of the next one.
	ListExternalKeys(ctx context.Context, q KeyQuery) ([]ExternalKey, string, error)
	// RevokeExternalKey returns the key as it is then. ErrNotFound and ErrEnded
	// say why not. A key that is used up or expired can be revoked.
	RevokeExternalKey(ctx context.Context, kid string, at time.Time, e audit.Entry) (ExternalKey, error)
}

// An Account is an ACME account.
type Account struct {
	ID          string
	Directory   string
	Status      string // valid, deactivated (by itself) or revoked (by an operator)
	Contacts    []string
	Thumbprint  string
	ExternalKey string // "" for none
	CreatedAt   time.Time
	RevokedAt   time.Time
	OpenOrders  int // only where one account was asked for
}

// An AccountQuery selects accounts, newest first. Zero fields select everything.
type AccountQuery struct {
	Directory   *string
	Status      string
	ExternalKey string
	Before      string
	Limit       int
}

// Accounts keeps ACME accounts; ErrNotFound says that there is none.
type Accounts interface {
	ListAccounts(ctx context.Context, q AccountQuery) ([]Account, string, error)
	Account(ctx context.Context, id string) (Account, error)
	// RevokeAccount ends a valid account, with all its orders that no certificate
	// is being signed for. ErrEnded says that it is not valid.
	RevokeAccount(ctx context.Context, id string, at time.Time, e audit.Entry) error
}

const (
	maxKeyScope   = 100 // domains, ranges, profiles of one key, each
	maxKeyUses    = 1_000_000_000
	macKeySize    = 64 // octets: as many as the largest of the hashes that clients choose from
	maxKeyComment = 256
)

func (s *Server) createExternalKey(w http.ResponseWriter, r *http.Request) error {
	k, err := s.readExternalKey(w, r)
	if err != nil {
		return err
	}
	by := requester(r.Context())
	k.KID, k.CreatedBy, k.CreatedAt = audit.NewID(), by.Actor, time.Now().UTC().Truncate(time.Microsecond)
	if !k.Expires.IsZero() && !k.Expires.After(k.CreatedAt) {
		return invalid("expires", "is not in the future")
	}
	k.MAC = newMACKey()
	e := entryOf(by, "acme.external_key.created", "external-key/"+k.KID, map[string]any{
		"directory": directoryName(k.Directory), "comment": k.Comment, "dns": k.DNS, "ip": k.IP, "profiles": k.Profiles,
		"expires": timePtr(k.Expires), "max_uses": k.MaxUses,
	})
	if err := s.externalKeys.CreateExternalKey(r.Context(), k, e); err != nil {
		return fmt.Errorf("creating key of an external account: %w", err)
	}
	out := wireExternalKey(k, k.CreatedAt)
	// The one answer that has it.
	out.MACKey = base64.RawURLEncoding.EncodeToString(k.MAC)
	return answer(w, out)
}

// newMACKey draws a key that does not begin with "-" in base64url, since one of
// 64 would: certbot takes that for an option.
func newMACKey() []byte {
	k := make([]byte, macKeySize)
	for {
		_, _ = rand.Read(k) // never fails
		if base64.RawURLEncoding.EncodeToString(k[:3])[0] != '-' {
			return k
		}
	}
}

func (s *Server) readExternalKey(w http.ResponseWriter, r *http.Request) (ExternalKey, error) {
	var (
		q       client.NewExternalKey
		k       ExternalKey
		expires string
	)
	q.MaxUses = 1
	err := readBody(w, r, map[string]any{
		"directory": &q.Directory, "comment": &q.Comment, "dns": &q.DNS, "ip": &q.IP, "profiles": &q.Profiles, "expires": &expires, "max_uses": &q.MaxUses,
	})
	if err != nil {
		return k, err
	}
	d, err := s.directoryThatBinds(q.Directory)
	if err != nil {
		return k, err
	}
	k.Directory, k.Comment, k.MaxUses = d.Name, q.Comment, q.MaxUses
	if k.MaxUses < 0 || k.MaxUses > maxKeyUses {
		return k, invalid("max_uses", "is not a whole number from 0, which is any number of accounts, to %d", maxKeyUses)
	}
	if len(k.Comment) > maxKeyComment || !utf8.ValidString(k.Comment) || strings.ContainsFunc(k.Comment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return k, invalid("comment", "is longer than %d bytes, or not one line of text", maxKeyComment)
	}
	if expires != "" {
		if k.Expires, err = time.Parse(time.RFC3339, expires); err != nil {
			return k, invalid("expires", "is not a time as in RFC 3339, such as 2027-01-31T00:00:00Z")
		}
		k.Expires = k.Expires.UTC().Truncate(time.Second)
	}
	return k, k.readScope(q, d)
}

// readScope reads what the key's accounts may order.
func (k *ExternalKey) readScope(q client.NewExternalKey, d Directory) error {
	for name, n := range map[string]int{"dns": len(q.DNS), "ip": len(q.IP), "profiles": len(q.Profiles)} {
		if n > maxKeyScope {
			return invalid(name, "has more than %d entries", maxKeyScope)
		}
	}
	for _, name := range q.DNS {
		n, ok := domain(name)
		if !ok {
			return invalid("dns", "has %.100q, which is not a domain in ASCII (A-labels) without wildcard, such as example.org", name)
		}
		k.DNS = append(k.DNS, n)
	}
	for _, text := range q.IP {
		p, ok := ipRange(text)
		if !ok {
			return invalid("ip", "has %.100q, which is not an address or a range such as 10.0.0.0/8 or 2001:db8::/32", text)
		}
		k.IP = append(k.IP, p)
	}
	for _, p := range q.Profiles {
		if !slices.Contains(d.Profiles, p) {
			return invalid("profiles", "has %.100q: directory %s has %s", p, directoryName(d.Name), orNone(d.Profiles))
		}
		k.Profiles = append(k.Profiles, p)
	}
	return nil
}

// domain brings a domain to the form in which orders have theirs.
func domain(s string) (string, bool) {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if s == "" || len(s) > 253 {
		return "", false
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return "", false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return "", false
		}
	}
	return s, true
}

func ipRange(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() || p != p.Masked() {
		return netip.Prefix{}, false
	}
	return p, true
}

func (s *Server) listExternalKeys(w http.ResponseWriter, r *http.Request) error {
	p := readParams(r, "directory", "limit", "cursor")
	q := KeyQuery{Directory: directoryFilter(p.text("directory")), Before: p.cursor("external-keys"), Limit: p.limit()}
	if p.err != nil {
		return p.err
	}
	list, next, err := s.externalKeys.ListExternalKeys(r.Context(), q)
	if errors.Is(err, ErrNotFound) {
		return errBadCursor
	}
	if err != nil {
		return fmt.Errorf("listing keys of external accounts: %w", err)
	}
	now := time.Now()
	page := client.ExternalKeyPage{Keys: make([]client.ExternalKey, 0, len(list)), Next: encodeCursor("external-keys", next)}
	for _, k := range list {
		page.Keys = append(page.Keys, wireExternalKey(k, now))
	}
	return answer(w, page)
}

func (s *Server) revokeExternalKey(w http.ResponseWriter, r *http.Request) error {
	kid, err := idOf(r, "kid", "key id")
	if err != nil {
		return err
	}
	var accounts bool
	if err := readBody(w, r, map[string]any{"revoke_accounts": &accounts}); err != nil {
		return err
	}
	by, at := requester(r.Context()), time.Now().UTC().Truncate(time.Microsecond)
	e := entryOf(by, "acme.external_key.revoked", "external-key/"+kid, map[string]bool{"revoke_accounts": accounts})
	k, err := s.externalKeys.RevokeExternalKey(r.Context(), kid, at, e)
	switch {
	case errors.Is(err, ErrNotFound):
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no key of an external account with the id %s", kid)
	case errors.Is(err, ErrEnded) && !accounts:
		return problemf(http.StatusConflict, client.CodeAlreadyRevoked, "the key was revoked at %s", k.RevokedAt.UTC().Format(time.RFC3339))
	case err != nil && !errors.Is(err, ErrEnded):
		return fmt.Errorf("revoking key of an external account: %w", err)
	}
	out := client.RevokedExternalKey{ExternalKey: wireExternalKey(k, at)}
	if accounts {
		// Nobody can be bound by it any more: what is there now is all.
		if out.AccountsRevoked, err = s.revokeAccountsOf(r.Context(), kid, by); err != nil {
			return err
		}
	}
	return answer(w, out)
}

// revokeAccountsOf revokes the accounts of a key, one by one: each is a fact of
// its own, and who asks again after a fault goes on with those that are left.
func (s *Server) revokeAccountsOf(ctx context.Context, kid string, by ca.Requester) (n int, err error) {
	q := AccountQuery{Status: client.AccountValid, ExternalKey: kid, Limit: maxLimit}
	for {
		page, _, err := s.accounts.ListAccounts(ctx, q)
		if err != nil {
			return n, fmt.Errorf("listing accounts of a key: %w", err)
		}
		for _, a := range page {
			switch err := s.endAccount(ctx, a.ID, by, kid); {
			case err == nil:
				n++
			case !errors.Is(err, ErrEnded):
				return n, fmt.Errorf("revoking account %s: %w", a.ID, err)
			}
		}
		if len(page) < q.Limit {
			return n, nil
		}
	}
}

func (s *Server) endAccount(ctx context.Context, id string, by ca.Requester, kid string) error {
	detail := map[string]string{}
	if kid != "" {
		detail["external_account_key"] = kid
	}
	e := entryOf(by, "account.revoked", "account/"+id, detail)
	return s.accounts.RevokeAccount(ctx, id, time.Now().UTC().Truncate(time.Microsecond), e)
}

func (s *Server) listAccounts(w http.ResponseWriter, r *http.Request) error {
	p := readParams(r, "directory", "status", "external_key", "limit", "cursor")
	q := AccountQuery{
		Directory: directoryFilter(p.text("directory")), Status: p.oneOf("status", client.AccountStatuses()), ExternalKey: p.text("external_key"),
		Before: p.cursor("accounts"), Limit: p.limit(),
	}
	if p.err != nil {
		return p.err
	}
	list, next, err := s.accounts.ListAccounts(r.Context(), q)
	if errors.Is(err, ErrNotFound) {
		return errBadCursor
	}
	if err != nil {
		return fmt.Errorf("listing accounts: %w", err)
	}
	page := client.AccountPage{Accounts: make([]client.Account, 0, len(list)), Next: encodeCursor("accounts", next)}
	for _, a := range list {
		page.Accounts = append(page.Accounts, wireAccount(a))
	}
	return answer(w, page)
}

func (s *Server) account(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	id, err := idOf(r, "id", "account id")
	if err != nil {
		return err
	}
	return s.answerAccount(r.Context(), w, id)
}

func (s *Server) answerAccount(ctx context.Context, w http.ResponseWriter, id string) error {
	a, err := s.accounts.Account(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no ACME account with the id %s", id)
	}
	if err != nil {
		return fmt.Errorf("reading account: %w", err)
	}
	out := wireAccount(a)
	out.OpenOrders = &a.OpenOrders
	return answer(w, out)
}

func (s *Server) revokeAccount(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(r, "id", "account id")
	if err != nil {
		return err
	}
	if err := readBody(w, r, map[string]any{}); err != nil {
		return err
	}
	switch err := s.endAccount(r.Context(), id, requester(r.Context()), ""); {
	case errors.Is(err, ErrEnded):
		return problemf(http.StatusConflict, client.CodeAlreadyRevoked, "the account is no longer valid: it was deactivated or revoked before")
	case err != nil && !errors.Is(err, ErrNotFound):
		return fmt.Errorf("revoking account: %w", err)
	}
	return s.answerAccount(r.Context(), w, id)
}

// idOf reads an id from the path. Others name nothing, and no database is asked.
func idOf(r *http.Request, name, what string) (string, error) {
	id := r.PathValue(name)
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return "", problemf(http.StatusBadRequest, client.CodeInvalidParameter, "%.100q is no %s: 32 hex digits are", id, what)
	}
	return id, nil
}

// bindingKey is the key of the configuration that lets a directory bind accounts.
func bindingKey(directory string) string {
	if directory == "" {
		return "acme.external_account_binding"
	}
	return "external_account_binding of it in acme.directories"
}

// directoryThatBinds finds a directory for which keys can be made.
func (s *Server) directoryThatBinds(name string) (Directory, error) {
	var names []string
	for _, d := range s.directories {
		if directoryName(d.Name) != name && (name != "" || d.Name != "") {
			names = append(names, directoryName(d.Name))
			continue
		}
		if !d.Binds {
			return d, problemf(http.StatusConflict, client.CodeRefused,
				"directory %s binds no accounts to external ones: set %s to optional or required", directoryName(d.Name), bindingKey(d.Name))
		}
		return d, nil
	}
	if len(names) == 0 {
		return Directory{}, problemf(http.StatusConflict, client.CodeRefused, "ACME is off: set acme.enabled")
	}
	return Directory{}, invalid("directory", "%.100q is not one of %s", name, strings.Join(names, ", "))
}

// directoryFilter reads a directory's name as operators write it; "" is all.
func directoryFilter(name string) *string {
	switch name {
	case "":
		return nil
	case DefaultDirectory:
		name = ""
	}
	return &name
}

func directoryName(name string) string {
	if name == "" {
		return DefaultDirectory
	}
	return name
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func entryOf(by ca.Requester, action, object string, detail any) audit.Entry {
	e := audit.New(by.Actor, action, object, detail)
	if by.Addr.IsValid() {
		e.Remote = by.Addr.String()
	}
	e.Request = by.RequestID
	return e
}

func wireExternalKey(k ExternalKey, now time.Time) client.ExternalKey {
	out := client.ExternalKey{
		KID: k.KID, Directory: directoryName(k.Directory), Status: k.Status(now), Comment: k.Comment, DNS: k.DNS, Profiles: k.Profiles,
		Expires: timePtr(k.Expires), MaxUses: k.MaxUses, Uses: k.Uses, LastUsedAt: timePtr(k.LastUsedAt), RevokedAt: timePtr(k.RevokedAt),
		CreatedBy: k.CreatedBy, CreatedAt: k.CreatedAt,
	}
	for _, p := range k.IP {
		out.IP = append(out.IP, p.String())
	}
	return out
}

func wireAccount(a Account) client.Account {
	return client.Account{
		ID: a.ID, Directory: directoryName(a.Directory), Status: a.Status, Contacts: a.Contacts, Thumbprint: a.Thumbprint,
		ExternalKey: a.ExternalKey, CreatedAt: a.CreatedAt, RevokedAt: timePtr(a.RevokedAt),
	}
}
