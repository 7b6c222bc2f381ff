package crl

import "github.com/secsy-pki/secsy-pki/ratelimit"

// fileCost is what a request pays: a list can be long, but is there.
const fileCost = ratelimit.Token / 10

// Limit is what requests are charged to.
func (s *Server) Limit() *ratelimit.Endpoint { return s.limit }
