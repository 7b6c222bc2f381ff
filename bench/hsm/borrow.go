package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

// A borrow is what it costs to borrow a session and give it back, with nobody
// else there and nothing done with it.
type borrow struct{ ns, allocs measure.Sample }

const poolPackage = "github.com/secsy-pki/secsy-pki/pkcs11pool"

// borrowed is a line of the benchmark beside the code: what it measures is not
// to be had from outside the package.
var borrowed = regexp.MustCompile(`(?m)^BenchmarkBorrow(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?\s(\d+) allocs/op`)

func measureBorrow(ctx context.Context, quick bool) (borrow, error) {
	repeat, length := 9, "200ms"
	if quick {
		repeat, length = 1, "10x"
	}
	// A list of processors repeats a benchmark as -count does, which would have
	// the tests' tokens made as often.
	processors := slices.Repeat([]string{strconv.Itoa(runtime.GOMAXPROCS(0))}, repeat)
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkBorrow$", "-benchmem",
		"-cpu", strings.Join(processors, ","), "-benchtime", length, poolPackage)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return borrow{}, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return parseBorrow(string(out))
}

func parseBorrow(out string) (b borrow, err error) {
	for _, line := range borrowed.FindAllStringSubmatch(out, -1) {
		ns, err := strconv.ParseFloat(line[1], 64)
		if err != nil {
			return b, err
		}
		allocs, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			return b, err
		}
		b.ns, b.allocs = append(b.ns, ns), append(b.allocs, allocs)
	}
	if len(b.ns) == 0 {
		return b, fmt.Errorf("BenchmarkBorrow did not say what it measured:\n%s", out)
	}
	return b, nil
}
