# The two commands: `make run` starts a working CA, `make test` proves it.
GO ?= go
BIN := bin/secsy-pki
LINT := $(GO) tool -modfile=tools/go.mod golangci-lint
VULN := $(GO) tool -modfile=tools/go.mod govulncheck
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PKGS = $(shell $(GO) list ./... | grep -v /integration)
# What SQLite recommends to those who need no more (sqlite.org/compile.html), and that fdatasync is there, which is all
# that it needs. A bare `go build` makes a program that does the same with more processor time (docs/benchmarks.md).
export CGO_CFLAGS ?= -O2 -g -DHAVE_FDATASYNC=1 -DSQLITE_DEFAULT_MEMSTATUS=0 -DSQLITE_LIKE_DOESNT_MATCH_BLOBS -DSQLITE_USE_ALLOCA \
	-DSQLITE_OMIT_SHARED_CACHE -DSQLITE_MAX_EXPR_DEPTH=0 -DSQLITE_DQS=0
# A number of executions, not a length of time: the same work on every machine.
FUZZTIME ?= 3000x

.PHONY: run build test check lint race fuzz vuln tidy integration bench bench-store bench-admission bench-fairness bench-hsm bench-ocsp bench-acme bench-crl soak chaos deps clean help

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

run: build ## build, start a CA in ./secsy-data, print what to try
	@$(BIN) quickstart

build: ## bin/secsy-pki
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o $(BIN) ./cmd/secsy-pki

test: deps check integration ## everything, with real servers and clients
	@echo "make test: all passed"

deps: ## install what the tests need (Debian), or say what to install
	@scripts/test-deps

check: tidy lint race fuzz vuln ## what every change must pass

tidy: ## go.mod says exactly what is used
	$(GO) mod tidy -diff
	cd integration/clients && $(GO) mod tidy -diff

lint: ## gofumpt, vet, staticcheck and the other linters of .golangci.yml
	$(LINT) fmt --diff
	$(LINT) run ./...
	cd bench && $(GO) vet ./...
	cd integration/clients && $(GO) vet ./...

race: ## unit tests with the race detector, walls included
	@echo "go test -race: all rooms"
	@$(GO) test -race -timeout 15m $(PKGS)

SOAK ?= 100000
soak: ## 100 000 signatures by a token that fails at random (SOAK=n: others), and what has grown then; once more without the race detector, for the memory
	SOAK=$(SOAK) $(GO) test -race -count=1 -v -timeout 60m -run '^TestNothingGrowsUnderFaults$$' ./pkcs11pool
	SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 60m -run '^TestNothingGrowsUnderFaults$$' ./pkcs11pool

CHAOS ?= 100
chaos: build ## storms of finalizes, device faults and 100 kills (CHAOS=n: others), about 5 minutes
	CHAOS=$(CHAOS) $(GO) test -count=1 -v -timeout 60m -run '^TestStormsKillsAndFaultsLoseNothing$$' ./integration

fuzz: ## every fuzz target for FUZZTIME: executions (3000x) or time (60s)
	@scripts/fuzz $(FUZZTIME)

vuln: ## known vulnerabilities, where their database can be reached
	@scripts/vulncheck $(VULN)

integration: build ## the built program against real clients and databases
	$(GO) test -count=1 -timeout 25m ./integration/...

# bench/ is a module of its own: what we are measured against is no part of the program.
bench: bench-store bench-admission bench-fairness bench-hsm bench-ocsp bench-acme bench-crl ## all benchmarks, against others and the bare limit

bench-store: ## SQLite: shared commits against one commit each
	$(GO) run ./store/storetest/storebench -dir .

bench-admission: ## what a refusal costs, beside other limiters and semaphores
	cd bench && $(GO) run ./admission

bench-fairness: ## whom a flood hurts, before a stub device (about 6 minutes)
	cd bench && $(GO) run ./fairness

bench-hsm: ## signatures by guard and pool beside bare PKCS#11 calls and other libraries (about 5 minutes)
	cd bench && $(GO) run ./hsm

bench-ocsp: ## OCSP answers, ready and signed, beside bare net/http and other responders (about 3 minutes)
	cd bench && $(GO) run ./ocsp

bench-acme: ## whole ACME issuances by 1, 8 and 32 clients on SQLite and PostgreSQL (about 2 minutes)
	cd bench && $(GO) run ./acme

bench-crl: ## a CRL of a million entries, from memory, SQLite and PostgreSQL (about 5 minutes)
	cd bench && $(GO) run ./crl

clean: ## what was built
	rm -rf bin
