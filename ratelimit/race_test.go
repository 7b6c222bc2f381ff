//go:build race

package ratelimit

// underRace says that every access to memory is watched, and costs ten times as much.
const underRace = true
