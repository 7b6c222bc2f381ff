# shellcheck shell=bash
# What a client does at a server whose limits are so tight that some of its runs
# are refused. Sourced by limits-*.sh after lib.sh.
#
# limits_run ISSUE CHECK: calls ISSUE NAME LOG for one new name after another,
# which returns the client's status and leaves what it said in $W/LOG.log, and
# CHECK NAME after each success. A refused run must say that it met a rate limit,
# and must succeed with the same name after a pause: nothing may be left broken.

LIMITS_RUNS=${LIMITS_RUNS:-4}   # names to get certificates for
LIMITS_PAUSE=${LIMITS_PAUSE:-6} # seconds after a refusal: the server's bucket must refill in it
LIMITS_TRIES=${LIMITS_TRIES:-6}

limits_run() {
	local issue=$1 check=$2 refused=0 i try name
	for ((i = 1; i <= LIMITS_RUNS; i++)); do
		name="n$i.$D"
		for ((try = 1; ; try++)); do
			step "certificate $i, try $try"
			"$issue" "$name" "run-$i-$try" && break
			limits_said "run-$i-$try" || fail "$KIT_STEP: failed for another reason than a rate limit: $(kit_why "$W/run-$i-$try.log")"
			refused=$((refused + 1))
			[ "$try" -lt "$LIMITS_TRIES" ] || fail "$KIT_STEP: still refused after $try tries: $(kit_why "$W/run-$i-$try.log")"
			sleep "$LIMITS_PAUSE"
		done
		"$check" "$name"
	done
	LIMITS_REFUSED=$refused
}

# limits_said LOG: whether the client told its user about the limit.
limits_said() { grep -aqiE 'rateLimited|rate ?limit|too many|429' "$W/$1.log" "$W"/l/* 2>/dev/null; }
