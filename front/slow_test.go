package front_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/front"
)

// Who connects and says nothing, or begins a header and stops, loses the
// connection when the header should have been there.
func TestAMutePeerIsCutAtTheHeaderTimeout(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":       "",
		"half a line":   "GET / HT",
		"half a header": "GET / HTTP/1.1\r\nHost: h\r\nX-",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(front.Listener{}, tellCaller), func(t *testing.T, s *street, _ *house) {
				c := s.from(t, "192.0.2.7")
				send(t, c, text)
				if got, after := lasts(c); !dismissed(got) || after != 10*time.Second {
					t.Errorf("answered with %q and closed after %s, want 10s", got, after)
				}
			})
		})
	}
}

// dismissed reports whether all that was said is that there was no request: half
// a line is a bad one to net/http.
func dismissed(answer string) bool { return answer == "" || code(answer) == "400 Bad Request" }

// A header that stops in the middle of a kept connection is no better.
func TestAMutePeerOfAKeptConnectionIsCutToo(t *testing.T) {
	t.Parallel()
	bubble(t, one(front.Listener{}, tellCaller), func(t *testing.T, s *street, _ *house) {
		c := s.from(t, "192.0.2.7")
		if got := status(t, c, plainGet); got != http.StatusOK {
			t.Fatalf("status %d, want 200", got)
		}
		send(t, c, "GET / HTTP/1.1\r\nHo")
		if got, after := lasts(c); !dismissed(got) || after != 10*time.Second {
			t.Errorf("answered with %q and closed after %s, want 10s", got, after)
		}
		c = s.from(t, "192.0.2.7")
		status(t, c, plainGet)
		if got, after := lasts(c); got != "" || after != 90*time.Second {
			t.Errorf("answered with %q and closed after %s, want nothing and 90s", got, after)
		}
	})
}

// A body that stops is cut when it should have been there. Its handler can tell
// it from others, and the answer still reaches the client.
func TestABodyThatStopsIsAnsweredWith408(t *testing.T) {
	t.Parallel()
	for _, part := range []string{
		"Content-Length: 10\r\n\r\nabc",
		"Content-Length: 60000\r\n\r\nabc",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
		"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(front.Listener{Limits: front.Limits{Read: 20 * time.Second}}, readAndTell), func(t *testing.T, s *street, _ *house) {
				c := s.from(t, "192.0.2.7")
				send(t, c, "POST / HTTP/1.1\r\nHost: h\r\n"+part)
				start, r := time.Now(), bufio.NewReader(c)
				if strings.HasPrefix(part, "Expect") {
					if res, _ := readAnswer(t, r); res.StatusCode != http.StatusContinue {
						t.Errorf("asked whether to go on: %d, want 100", res.StatusCode)
					}
				}
				res, _ := readAnswer(t, r)
				if res.StatusCode != http.StatusRequestTimeout || !res.Close {
					t.Errorf("answered with %d, closing %v; want 408 and a close", res.StatusCode, res.Close)
				}
				if after := time.Since(start); after != 20*time.Second {
					t.Errorf("answered after %s, want 20s", after)
				}
				if rest, after := lasts(c); rest != "" || after > time.Second {
					t.Errorf("then came %q, and the end after %s", rest, after)
				}
			})
		})
	}
}

// The same over TLS, where the error passes through other hands.
func TestABodyThatStopsIsKnownOverTLSToo(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			seen := make(chan error, 1)
			h, config := openTLS(t, front.Listener{Limits: front.Limits{Read: 100 * time.Millisecond}}, func(w http.ResponseWriter, r *http.Request) {
				_, err := io.ReadAll(r.Body)
				seen <- err
				w.WriteHeader(http.StatusRequestTimeout)
			})
			config.NextProtos = []string{proto}
			tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: proto == "h2"}
			defer tr.CloseIdleConnections()
			mute, unmute := io.Pipe()
			defer func() { _ = unmute.Close() }()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+h.address()+"/", mute)
			if err != nil {
				t.Fatal(err)
			}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusRequestTimeout {
				t.Errorf("status %d, want 408", res.StatusCode)
			}
			if err := <-seen; !isDeadline(err) {
				t.Errorf("the handler read %v, want a passed deadline", err)
			}
		})
	}
}

// A slow body is not a stopped one: four seconds are fine, more than the limit
// is not.
func TestASlowHonestBodyIsServed(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int]string{4: "200 OK", 24: "408 Request Timeout"} {
		t.Run(fmt.Sprint(seconds, "s"), func(t *testing.T) {
			t.Parallel()
			bubble(t, one(front.Listener{Limits: front.Limits{Read: 20 * time.Second}}, readAndTell), func(t *testing.T, s *street, _ *house) {
				c := s.from(t, "192.0.2.7")
				send(t, c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", seconds))
				go func() {
					for range seconds {
						time.Sleep(time.Second) // in the bubble
						_, _ = io.WriteString(c, "x")
					}
				}()
				if got, _ := lasts(c); code(got) != want {
					t.Errorf("a body over %d s: %q, want %s", seconds, got, want)
				}
				time.Sleep(time.Duration(seconds) * time.Second)
			})
		})
	}
}

// Sixty-four peers that stop before their header, in it or in the body hold
// nothing that an honest one waits for.
func TestMutePeersDoNotSlowAnHonestOne(t *testing.T) {
	t.Parallel()
	bubble(t, one(front.Listener{Limits: front.Limits{Connections: 100, ConnectionsPerClient: 100}}, readAndTell), func(t *testing.T, s *street, h *house) {
		for i := range 64 {
			c := s.from(t, "192.0.2.66")
			send(t, c, []string{"", "GET / HTTP", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\na", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n"}[i%4])
		}
		synctest.Wait()
		start := time.Now()
		for range 20 {
			c := s.from(t, "192.0.2.7")
			if got := status(t, c, plainGet); got != http.StatusOK {
				t.Errorf("an honest request: %d, want 200", got)
			}
			_ = c.Close()
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("honest requests waited %s for mute peers", took)
		}
		synctest.Wait()
		if n := h.metric(t, "secsy_http_connections"); n != 64 {
			t.Errorf("%v connections are open, want the 64 mute ones", n)
		}
		if n := h.metric(t, "secsy_http_requests_in_flight"); n != 32 {
			t.Errorf("%v requests are under way, want the 32 with half a body", n)
		}
	})
}

// Where a request ends must be beyond doubt. Lengths that contradict each other
// and codings that nobody asked for are refused, and the connection with them.
func TestFramingThatReadsTwoWaysIsRefused(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, readAndTell))
	for framing, want := range map[string]string{
		"Content-Length: 5\r\nContent-Length: 6":                    "400 Bad Request",
		"Content-Length: 5, 6":                                      "400 Bad Request",
		"Content-Length: 5, 5":                                      "400 Bad Request",
		"Content-Length: +5":                                        "400 Bad Request",
		"Content-Length: -5":                                        "400 Bad Request",
		"Content-Length: 0x5":                                       "400 Bad Request",
		"Content-Length: 5 5":                                       "400 Bad Request",
		"Content-Length:":                                           "400 Bad Request",
		"Content-Length : 5":                                        "400 Bad Request",
		"Content-Length: 99999999999999999999":                      "400 Bad Request",
		"Transfer-Encoding: gzip":                                   "501 Not Implemented",
		"Transfer-Encoding: identity\r\nContent-Length: 5":          "501 Not Implemented",
		"Transfer-Encoding: chunked, chunked":                       "501 Not Implemented",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked":  "501 Not Implemented",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity": "501 Not Implemented",
		"Transfer-Encoding: \x0bchunked":                            "400 Bad Request",
	} {
		got := say(t, h.address(), "POST / HTTP/1.1\r\nHost: h\r\n"+framing+"\r\n\r\nabcde"+plainGet)
		if !strings.HasPrefix(code(got), want) {
			t.Errorf("%q: %q, want %s", framing, got, want)
		}
		if strings.Count(got, "HTTP/1.1 ") != 1 {
			t.Errorf("%q: something was read after it: %q", framing, got)
		}
	}
}

// RFC 9112 §6.3 lets a server take a length that is given twice, if both are
// equal: there is one end to agree on then, and what follows is its own request.
func TestOneLengthGivenTwiceIsThatLength(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, readAndTell))
	got := say(t, h.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"+get)
	if strings.Count(got, "HTTP/1.1 200 OK") != 2 || !strings.Contains(got, "read 5") || !strings.HasSuffix(got, "read 0") {
		t.Errorf("%q, want two answers", got)
	}
}

// HTTP/1.0 has no chunks and most of its clients no second request: it is
// served, one request to a connection, whatever it asks for.
func TestHTTP10IsServedOneRequestToAConnection(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, readAndTell))
	for text, want := range map[string]string{
		"GET / HTTP/1.0\r\n\r\n": "read 0",
		"GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n" + plainGet:                      "read 0",
		"POST / HTTP/1.0\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nabcde" + plainGet:      "read 5",
		"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n" + plainGet:  "read 0",
		"POST / HTTP/1.0\r\nTransfer-Encoding: x\r\nContent-Length: 5\r\n\r\nabcde" + plainGet + "\n": "read 5",
	} {
		got := say(t, h.address(), text)
		if strings.Count(got, " 200 OK") != 1 || !strings.HasSuffix(got, want) {
			t.Errorf("%q: %q, want one answer %q", text, got, want)
		}
	}
}

// A length that is announced and too long is refused before a byte is read, and
// before the client is told to go on.
func TestAnAnnouncedOversizeIsRefusedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{Limits: front.Limits{Read: time.Hour, Write: time.Hour}}, readAndTell))
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		got := say(t, h.address(), "POST / HTTP/1.1\r\nHost: h\r\n"+expect+"Content-Length: 65537\r\n\r\n")
		if code(got) != "413 Request Entity Too Large" || !strings.HasSuffix(got, "read 0") {
			t.Errorf("%q, want 413 and nothing read", got)
		}
	}
}
