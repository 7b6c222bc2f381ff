package acme

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
)

// Pausing says when a name is paused for an account: after so many validations
// that failed in a row, none of them longer than Period after the one before.
type Pausing struct {
	Failures int // 0: never
	Period   time.Duration
}

// Pauses keeps which names are paused for which accounts.
type Pauses interface {
	// Paused returns those of ids that are paused for an account.
	Paused(ctx context.Context, accountID string, ids []ca.Identifier) ([]Pause, error)
	// ListPaused returns what is paused for an account, at most limit.
	ListPaused(ctx context.Context, accountID string, limit int) ([]Pause, error)
	// Unpause ends pauses of an account and reports how many.
	Unpause(ctx context.Context, u Unpausing) (int, error)
	// Secret returns the secret of that name, the same for all replicas for ever.
	// The first who asks brings it.
	Secret(ctx context.Context, name string, fresh []byte) ([]byte, error)
}

// A Failure is a validation that failed.
type Failure struct {
	AccountID  string
	Identifier ca.Identifier // never with "*."
	At         time.Time
	Limit      int           // as many in a row pause
	Period     time.Duration // so far apart they are not in a row
	Lasts      time.Duration // a pause that nobody ends
	Paused     audit.Entry   // of the pause, if it comes to that
}

// A Pause is one name that is paused.
type Pause struct {
	Identifier ca.Identifier
	Failures   int
	At         time.Time
}

// An Unpausing ends at most Limit pauses of an account.
type Unpausing struct {
	AccountID string
	Limit     int
	Entry     func(n int) audit.Entry // of n that were ended
}

// A PausedError says that an order needs names that are paused.
type PausedError struct{ Pauses []Pause }

func (e *PausedError) Error() string {
	return fmt.Sprintf("acme: %d of the order's names are paused", len(e.Pauses))
}

const (
	pauseLasts   = 365 * 24 * time.Hour
	unpausePath  = "unpause"
	unpauseLink  = 14 * 24 * time.Hour // for which a link is good
	unpauseShown = 100                 // names on the page
	unpauseMost  = 10000               // that one request ends
	pausedNamed  = 10                  // subproblems
	maxForm      = 4 << 10
)

// failure is how a failed validation counts: for nothing if the fault was ours.
func (s *Server) failure(a Authorization, p Problem, now time.Time) *Failure {
	if s.cfg.Pausing.Failures <= 0 || p.Type == ServerInternal {
		return nil
	}
	return &Failure{
		AccountID: a.AccountID, Identifier: a.Identifier, At: now, Limit: s.cfg.Pausing.Failures, Period: s.cfg.Pausing.Period, Lasts: pauseLasts,
		Paused: audit.New("system", "identifier.paused", "account/"+a.AccountID, map[string]any{
			"type": a.Identifier.Type, "name": a.Identifier.Value, "failures": s.cfg.Pausing.Failures, "last": string(p.Type),
		}),
	}
}

// notPaused refuses an authorization ahead of an order as the order would be.
func (s *Server) notPaused(r *http.Request, a Authorization) error {
	if s.cfg.Pausing.Failures <= 0 {
		return nil
	}
	list, err := s.store.Paused(r.Context(), a.AccountID, []ca.Identifier{a.Identifier})
	if err != nil || len(list) == 0 {
		return err
	}
	return s.paused(r, a.AccountID, &PausedError{list})
}

// paused is what the client hears of an order that needs what is paused. The link
// is a key to the account's pauses: it is in no log of ours.
func (s *Server) paused(r *http.Request, accountID string, e *PausedError) error {
	link, err := s.unpauseLink(r.Context(), accountID)
	if err != nil {
		return err
	}
	if s.cfg.Recorder != nil {
		peer.Quiet(r.Context())
	}
	s.metrics.order("paused")
	s.cfg.Recorder.Refused("paused", s.classes.newOrder.name, actor(accountID), peer.From(r.Context()).Addr)
	first, more := e.Pauses[0], ""
	if n := len(e.Pauses) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	p := &Problem{
		Type: RateLimited, RetryAfter: maxRetryAfter * time.Second, Err: e,
		Detail: fmt.Sprintf("proving %s failed %d times in a row, so no order of this account that needs it is taken%s; once it is mended, go on at ",
			first.Identifier.Value, first.Failures, more),
		Private: link,
	}
	for _, x := range e.Pauses[:min(len(e.Pauses), pausedNamed)] {
		id := x.Identifier
		p.Subproblems = append(p.Subproblems, Problem{
			Type: RateLimited, Identifier: &id, Detail: fmt.Sprintf("paused since %s, after %d failures", wireTime(x.At), x.Failures),
		})
	}
	return p
}

// pauses holds the key that links are made with, once it is needed.
type pauses struct {
	mu  sync.Mutex // guards key
	key []byte
}

func (s *Server) pauseKey(ctx context.Context) ([]byte, error) {
	s.pauses.mu.Lock()
	key := s.pauses.key
	s.pauses.mu.Unlock()
	if key != nil {
		return key, nil
	}
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // never fails
	// One for each directory: a link shows an account only where it is one.
	key, err := s.store.Secret(ctx, "unpause/"+s.cfg.Directory, fresh)
	if err == nil && len(key) != len(fresh) {
		err = errors.New("the key of links to unpause has a wrong length")
	}
	if err != nil {
		return nil, err
	}
	s.pauses.mu.Lock()
	s.pauses.key = key
	s.pauses.mu.Unlock()
	return key, nil
}

// A token is an account's id, when it ends, and a MAC of both, in base64url.
const (
	tokenID     = 16
	tokenBody   = tokenID + 8
	tokenLength = tokenBody + sha256.Size
)

func (s *Server) unpauseLink(ctx context.Context, accountID string) (string, error) {
	key, err := s.pauseKey(ctx)
	if err != nil {
		return "", err
	}
	token, err := newUnpauseToken(key, accountID, s.now().Add(unpauseLink))
	return s.url(unpausePath) + "?token=" + token, err
}

func newUnpauseToken(key []byte, accountID string, end time.Time) (string, error) {
	b, err := hex.DecodeString(accountID)
	if err != nil || len(b) != tokenID {
		return "", errors.New("account " + accountID + " has an id of another form")
	}
	b = binary.BigEndian.AppendUint64(b, uint64(end.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(b, unpauseMAC(key, b)...)), nil
}

func unpauseMAC(key, body []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("unpause\x00"))
	m.Write(body)
	return m.Sum(nil)
}

// readUnpauseToken returns the account of a token that is ours and has not ended.
func readUnpauseToken(key []byte, token string, now time.Time) (accountID string, ok bool) {
	if len(token) != base64.RawURLEncoding.EncodedLen(tokenLength) {
		return "", false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != tokenLength || !hmac.Equal(b[tokenBody:], unpauseMAC(key, b[:tokenBody])) {
		return "", false
	}
	if end := int64(binary.BigEndian.Uint64(b[tokenID:tokenBody])); now.Unix() >= end {
		return "", false
	}
	return hex.EncodeToString(b[:tokenID]), true
}

// unpauseEndpoint is for people: the page behind the link, and its button.
func (s *Server) unpauseEndpoint() endpoint {
	return endpoint{name: "unpause", pattern: "/" + unpausePath, methods: map[string]handler{
		http.MethodGet: s.showPauses, http.MethodHead: s.showPauses, http.MethodPost: s.unpause,
	}}
}

// showPauses changes nothing: mail scanners and chat programs follow links, too.
func (s *Server) showPauses(w http.ResponseWriter, r *http.Request) error {
	token := r.URL.Query().Get("token")
	account, err := s.unpauser(r, token)
	if err != nil {
		return err
	}
	if account == "" {
		return s.writePage(w, r, http.StatusNotFound, unpausePage{})
	}
	list, err := s.store.ListPaused(r.Context(), account, unpauseShown+1)
	if err != nil {
		return err
	}
	p := unpausePage{Known: true, Account: s.accountURL(account), Token: token, Action: s.url(unpausePath), Pauses: list}
	if len(list) > unpauseShown {
		p.Pauses, p.More = list[:unpauseShown], true
	}
	return s.writePage(w, r, http.StatusOK, p)
}

// unpause is the button. Who has the token has all it takes, and who has it not
// can't make a browser send it: there are no cookies.
func (s *Server) unpause(w http.ResponseWriter, r *http.Request) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/x-www-form-urlencoded" {
		return s.writePage(w, r, http.StatusNotFound, unpausePage{})
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return s.writePage(w, r, http.StatusNotFound, unpausePage{})
	}
	account, err := s.unpauser(r, r.PostForm.Get("token"))
	if err != nil {
		return err
	}
	if account == "" {
		return s.writePage(w, r, http.StatusNotFound, unpausePage{})
	}
	n, err := s.store.Unpause(r.Context(), Unpausing{AccountID: account, Limit: unpauseMost, Entry: func(n int) audit.Entry {
		return s.entry(r.Context(), Account{ID: account}, "identifier.unpaused", "account/"+account, map[string]any{"count": n, "by": "link"})
	}})
	if err != nil {
		return err
	}
	return s.writePage(w, r, http.StatusOK, unpausePage{Known: true, Account: s.accountURL(account), Done: true, Ended: n, More: n == unpauseMost})
}

// unpauser is the account that a token is for: none for any that is not good,
// whatever is wrong with it.
func (s *Server) unpauser(r *http.Request, token string) (string, error) {
	key, err := s.pauseKey(r.Context())
	if err != nil {
		return "", err
	}
	account, ok := readUnpauseToken(key, token, s.now())
	if !ok {
		return "", nil
	}
	peer.Annotate(r.Context(), "account", account)
	return account, nil
}

// An unpausePage is what the page says.
type unpausePage struct {
	Known         bool
	Account       string
	Token, Action string
	Pauses        []Pause
	More, Done    bool
	Ended         int
}

// writePage writes a page that runs nothing, loads nothing and tells nobody where
// it was.
func (s *Server) writePage(w http.ResponseWriter, r *http.Request, status int, p unpausePage) error {
	var b bytes.Buffer
	if err := unpauseHTML.Execute(&b, p); err != nil {
		return fmt.Errorf("writing page: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	h.Del("Access-Control-Allow-Origin")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b.Bytes())
	}
	return nil
}

var unpauseHTML = template.Must(template.New("unpause").Funcs(template.FuncMap{"time": wireTime}).Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Paused names</title></head>
<body>
{{- if not .Known}}
<h1>This link is not good</h1>
<p>It was never made here, it is not complete, or it is older than two weeks. A new one is in the answer to the next order for a paused name.</p>
{{- else if .Done}}
<h1>{{if eq .Ended 1}}One name is no longer paused{{else if .Ended}}{{.Ended}} names are no longer paused{{else}}Nothing was paused{{end}}</h1>
<p>Account: {{.Account}}</p>
{{- if .More}}
<p>There were more of them than are ended at once. Follow the link again for the rest.</p>
{{- end}}
<p>Run your ACME client now.</p>
{{- else if not .Pauses}}
<h1>Nothing is paused</h1>
<p>Account: {{.Account}}</p>
{{- else}}
<h1>Paused names</h1>
<p>Account: {{.Account}}</p>
<p>Proving control of these names failed again and again, so orders that need them are refused:</p>
<table>
<tr><th>name</th><th>failures in a row</th><th>paused since</th></tr>
{{- range .Pauses}}
<tr><td>{{.Identifier.Value}}</td><td>{{.Failures}}</td><td>{{time .At}}</td></tr>
{{- end}}
</table>
{{- if .More}}
<p>There are more than are shown.</p>
{{- end}}
<p>Find out from your ACME client why they failed, and mend it first. Names that you no longer have, take out of its configuration.</p>
<form method="post" action="{{.Action}}"><input type="hidden" name="token" value="{{.Token}}"><button type="submit">End all pauses of this account</button></form>
{{- end}}
</body>
</html>
`))
