package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// asClient is the argument that makes this program the client.
const asClient = "-client"

// An errand is what the client is sent for.
type errand struct {
	Address     string
	Requests    [][]byte // in full, as they go over the wire
	Length      time.Duration
	Connections int
	Anew        bool // a connection for each request
}

// A report is what it brings back.
type report struct {
	Answers int
	Took    time.Duration
}

func send(ctx context.Context, e errand) (report, error) {
	self, err := os.Executable()
	if err != nil {
		return report{}, err
	}
	in, err := json.Marshal(e)
	if err != nil {
		return report{}, err
	}
	c := exec.CommandContext(ctx, self, asClient)
	c.Stdin, c.Stderr = bytes.NewReader(in), os.Stderr
	out, err := c.Output()
	if err != nil {
		return report{}, fmt.Errorf("client: %w", err)
	}
	var r report
	return r, json.Unmarshal(out, &r)
}

func client(in io.Reader, out io.Writer) error {
	var e errand
	if err := json.NewDecoder(in).Decode(&e); err != nil {
		return err
	}
	var (
		mu     sync.Mutex // guards the two
		r      report
		failed error
		all    sync.WaitGroup
	)
	began := time.Now()
	for i := range e.Connections {
		all.Go(func() {
			n, err := e.ask(i, began.Add(e.Length))
			mu.Lock()
			defer mu.Unlock()
			r.Answers += n
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	r.Took = time.Since(began)
	if failed != nil {
		return failed
	}
	return json.NewEncoder(out).Encode(r)
}

// ask makes requests one after the other until end, beginning with the first-th.
func (e errand) ask(first int, end time.Time) (n int, err error) {
	var c *conn
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	for i := first * len(e.Requests) / e.Connections; ; i++ {
		if n%16 == 0 && time.Now().After(end) {
			return n, nil
		}
		if c == nil {
			raw, err := net.Dial("tcp", e.Address)
			if err != nil {
				return n, err
			}
			c = &conn{raw, bufio.NewReaderSize(raw, 8<<10)}
		}
		if err := c.roundTrip(e.Requests[i%len(e.Requests)]); err != nil {
			return n, err
		}
		n++
		if e.Anew {
			_ = c.Close()
			c = nil
		}
	}
}

type conn struct {
	net.Conn
	r *bufio.Reader
}

var (
	okHTTP11      = []byte("HTTP/1.1 200 ")
	okHTTP10      = []byte("HTTP/1.0 200 ")
	contentLength = []byte("content-length: ")
)

// roundTrip sends a request and reads its answer, which must be a signed one.
func (c *conn) roundTrip(request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, okHTTP11) && !bytes.HasPrefix(line, okHTTP10) {
		return fmt.Errorf("answered with %q", line)
	}
	length := -1
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return err
			}
		}
	}
	if length < 100 {
		return fmt.Errorf("an answer of %d octets is not signed", length)
	}
	_, err = c.r.Discard(length)
	return err
}
