package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

const (
	// defaultRate is certificates a second: a hundred thousand take two minutes.
	defaultRate = 1000
	// samples is how many certificates are shown before the question.
	samples = 5
	// maxRounds bounds how often certificates are looked for that came meanwhile.
	maxRounds = 10
)

// many says what would happen, asks, and does it.
func (rev *revocation) many(ctx context.Context) error {
	targets, err := rev.targets(ctx)
	if err != nil {
		return err
	}
	able, failed, err := rev.rehearse(ctx, targets)
	if err != nil {
		return err
	}
	if rev.dryRun || len(able) == 0 {
		return failures(failed, len(targets))
	}
	if !rev.yes {
		if err := confirm(ctx, rev.cmd.InOrStdin(), rev.cmd.ErrOrStderr(), "nothing was revoked"); err != nil {
			return err
		}
	}
	if rev.replaceBy != "" {
		return errors.Join(rev.haveReplaced(ctx, able), failures(failed, len(targets)))
	}
	done, late, err := rev.carryOut(ctx, able)
	if err != nil {
		return err
	}
	// A certificate may have come for the key before it was refused.
	for round := 1; rev.key != "" && round < maxRounds; round++ {
		if able, err = rev.stillAble(ctx); err != nil || len(able) == 0 {
			break
		}
		n, more, doErr := rev.carryOut(ctx, able)
		done, late, err = done+n, late+more, doErr
	}
	warn(rev.cmd.ErrOrStderr(), "%s revoked", were(done))
	return errors.Join(err, failures(failed+late, len(targets)))
}

// were has a number of certificates followed by a verb in the passive.
func were(n int) string {
	if n == 1 {
		return "1 certificate was"
	}
	return fmt.Sprintf("%d certificates were", n)
}

func certificates(n int) string {
	if n == 1 {
		return "1 certificate"
	}
	return fmt.Sprintf("%d certificates", n)
}

// failures is the error of certificates that were named one by one before.
func failures(n, of int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d certificates can't be revoked: see above", n, of)
}

// targets finds all certificates that are meant, before the first is revoked.
func (rev *revocation) targets(ctx context.Context) ([]client.Revoke, error) {
	switch {
	case rev.file != "":
		return rev.fromFile()
	case len(rev.serials) > 0:
		list := make([]client.Revoke, 0, len(rev.serials))
		for _, s := range rev.serials {
			list = append(list, client.Revoke{Serial: s})
		}
		return list, nil
	}
	list, err := rev.query(ctx)
	if err == nil && len(list) == 0 {
		err = errors.New("no certificate that has not expired fulfils the conditions")
		if rev.key != "" {
			err = fmt.Errorf("%w; the key was not blocked, as that takes a certificate for it: ask again when there is one", err)
		}
	}
	return list, err
}

func (rev *revocation) fromFile() ([]client.Revoke, error) {
	in := rev.cmd.InOrStdin()
	if rev.file != "-" {
		f, err := os.Open(rev.file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	list, err := readTargets(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rev.file, err)
	}
	for _, t := range list {
		if t.Reason == "" && rev.Reason == "" {
			return nil, usagef(rev.cmd, "%s gives no reason for %s: say --reason", rev.file, t.Serial)
		}
	}
	return list, nil
}

func (rev *revocation) query(ctx context.Context) (list []client.Revoke, err error) {
	f := rev.filter
	f.State, f.Limit = "unexpired", 500
	if rev.key != "" {
		if f.SPKIHash, err = keyHash(rev.key); err != nil {
			return nil, err
		}
	}
	for {
		var page client.CertificatePage
		err := rev.conn.ask(ctx, patience, func(ctx context.Context, cl *client.Client) (err error) {
			page, err = cl.ListCertificates(ctx, f)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, c := range page.Certificates {
			list = append(list, client.Revoke{Serial: c.Serial})
		}
		if len(list) > maxTargets {
			return nil, fmt.Errorf("more than %d certificates fulfil the conditions: give narrower ones", maxTargets)
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			return list, nil
		}
	}
}

// rehearse counts and lists what would come of targets, and returns those that
// would be revoked.
func (rev *revocation) rehearse(ctx context.Context, targets []client.Revoke) (able []client.Revoke, failed int, err error) {
	counts := map[string]int{}
	err = rev.each(ctx, targets, true, func(t client.Revoke, r client.Result) error {
		counts[r.Outcome]++
		switch r.Outcome {
		case client.OutcomeRevoked:
			able = append(able, t)
		case client.OutcomeAlready:
		default:
			failed++
			rev.sayFailure(r)
		}
		if rev.asJSON && rev.dryRun {
			return printJSON(rev.cmd.OutOrStdout(), struct {
				client.Result
				DryRun bool `json:"dry_run"`
			}{r, true})
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	verb := "will be revoked"
	if rev.replaceBy != "" {
		verb = "will have to be replaced before " + rev.replaceBy
	}
	w := rev.cmd.ErrOrStderr()
	warn(w, "%s: %d %s, %d are revoked already, %d can't be", certificates(len(targets)), len(able), verb, counts[client.OutcomeAlready], failed)
	return able, failed, rev.showSample(ctx, able)
}

// showSample shows some certificates, from the first to the last.
func (rev *revocation) showSample(ctx context.Context, able []client.Revoke) error {
	n := min(samples, len(able))
	return rev.conn.ask(ctx, patience, func(ctx context.Context, cl *client.Client) error {
		for i := range n {
			c, err := cl.Certificate(ctx, able[i*len(able)/n].Serial)
			if err != nil {
				return err
			}
			warn(rev.cmd.ErrOrStderr(), "such as %s of %s, issued %s", c.Serial, safe(someNames(c.Names)), when(c.CreatedAt))
		}
		return nil
	})
}

func (rev *revocation) sayFailure(r client.Result) {
	warn(rev.cmd.ErrOrStderr(), "%s: %s: %s", r.Serial, r.Outcome, r.Detail)
}

// stillAble looks for certificates that came meanwhile.
func (rev *revocation) stillAble(ctx context.Context) (able []client.Revoke, err error) {
	list, err := rev.query(ctx)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	err = rev.each(ctx, list, true, func(t client.Revoke, r client.Result) error {
		if r.Outcome == client.OutcomeRevoked {
			able = append(able, t)
		}
		return nil
	})
	return able, err
}

// carryOut revokes.
func (rev *revocation) carryOut(ctx context.Context, able []client.Revoke) (done, failed int, err error) {
	err = rev.each(ctx, able, false, func(_ client.Revoke, r client.Result) error {
		switch r.Outcome {
		case client.OutcomeRevoked:
			done++
		case client.OutcomeAlready: // somebody was faster
		default:
			failed++
			rev.sayFailure(r)
		}
		if rev.asJSON {
			return printJSON(rev.cmd.OutOrStdout(), r)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("after %d of %d certificates (give the same command again to go on): %w", done, len(able), err)
	}
	return done, failed, err
}

// each sends targets in parts, and calls do for each result in their order.
// Between two parts it rests as long as the first one took at least, so that the
// server has half of its time for others.
func (rev *revocation) each(ctx context.Context, targets []client.Revoke, dry bool, do func(client.Revoke, client.Result) error) error {
	p := progress{w: rev.cmd.ErrOrStderr(), total: len(targets), began: time.Now(), doing: "revoking"}
	if dry {
		p.doing = "looking at"
	}
	defer p.end()
	for len(targets) > 0 {
		part := targets[:min(client.MaxRevocations, len(targets))]
		targets = targets[len(part):]
		began := time.Now()
		var results []client.Result
		err := rev.conn.ask(ctx, patience, func(ctx context.Context, cl *client.Client) (err error) {
			results, err = cl.RevokeMany(ctx, client.Revocations{Certificates: part, Revocation: rev.Revocation, DryRun: dry})
			return err
		})
		if err == nil && len(results) != len(part) {
			err = fmt.Errorf("the server answers for %d certificates out of %d", len(results), len(part))
		}
		if err != nil {
			return err
		}
		for i, r := range results {
			if err := do(part[i], r); err != nil {
				return err
			}
		}
		p.add(len(part))
		if len(targets) == 0 {
			return nil
		}
		if err := rest(ctx, rev.pause(time.Since(began), len(part), dry)); err != nil {
			return err
		}
	}
	return nil
}

func (rev *revocation) pause(took time.Duration, n int, dry bool) time.Duration {
	if dry { // reads, which nobody waits for
		return 0
	}
	pause := took
	if rev.rate > 0 {
		pause = max(pause, time.Duration(n)*time.Second/time.Duration(rev.rate)-took)
	}
	return pause
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// haveReplaced opens an incident for what is to be revoked later.
func (rev *revocation) haveReplaced(ctx context.Context, able []client.Revoke) error {
	by, err := time.Parse(time.RFC3339, rev.replaceBy)
	if err != nil {
		return err
	}
	name := rev.incident
	if name == "" {
		name = "revocation-" + strings.ToLower(by.UTC().Format("20060102T150405Z"))
	}
	serials := make([]string, 0, len(able))
	for _, t := range able {
		serials = append(serials, t.Serial)
	}
	start, end := replacementWindow(time.Now().UTC(), by)
	return rev.conn.ask(ctx, verifyPatience, func(ctx context.Context, cl *client.Client) error {
		_, err := cl.Incident(ctx, name)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == client.CodeNotFound {
			_, err = cl.CreateIncident(ctx, client.IncidentRequest{
				Name: name, Note: rev.note, URL: rev.url, Listed: true, WindowStart: start.Format(time.RFC3339), WindowEnd: end.Format(time.RFC3339),
			})
		}
		if err != nil {
			return err
		}
		if err := addSerials(ctx, rev.cmd, cl, name, serials); err != nil {
			return err
		}
		i, err := cl.Incident(ctx, name)
		if err != nil {
			return err
		}
		warn(rev.cmd.ErrOrStderr(), "nothing is revoked yet; from %s on: secsy-pki cert revoke --incident %s --reason %s", rev.replaceBy, name, rev.Reason)
		return showIncident(rev.cmd.OutOrStdout(), i, rev.asJSON)
	})
}

// replacementWindow is when clients are asked to replace what is revoked at by:
// spread over half of the time, so that the other half is for those who are late;
// at once, which is a window in the past (RFC 9773 §4.2), where there is less than
// a day, for clients ask a few times a day.
func replacementWindow(now, by time.Time) (start, end time.Time) {
	now = now.Truncate(time.Second)
	left := by.Sub(now)
	if left < 24*time.Hour {
		return now.Add(-2 * time.Hour), now.Add(-time.Hour)
	}
	return now, now.Add(left / 2)
}
