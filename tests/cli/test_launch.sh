# Ranks as processes: the digest of ranks as threads, at several counts; a rank that is killed or stopped ends all of
# them within the deadline with a message that names it; nothing stays in /dev/shm; training resumes to the digest of
# an undisturbed run.
set -u
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -c '
state = 11
out = []
for i in range(20000):
    state = (state * 1103515245 + 12345) % 2**31
    out.append(chr(97 + state // 65536 % 26) if state // 1024 % 5 else " ")
print("".join(out))
' >"$work/text"
options="--data $work/text --size tiny --quiet"

objects() {
    ls /dev/shm 2>/dev/null | grep -c '^mok\.' || true
}

fail() {
    echo "$1"
    failed=1
}

before=$(objects)
# shellcheck disable=SC2086 # a list of options
threads=$("$MOK" train $options --steps 6 --out "$work/threads")
for ranks in 1 2 3 4; do
    got=$("$MOK" launch --ranks $ranks -- "$MOK" train $options --steps 6 --out "$work/p$ranks" --threads 1)
    [ "$got" = "$threads" ] || fail "$ranks processes: '$got', threads: '$threads'"
done

# Other options on one rank: all refuse, naming rank and option.
cat >"$work/odd" <<'ODD'
seed=1
[ "$MOK_RANK" = 1 ] && seed=2
exec "$@" --seed $seed
ODD
"$MOK" launch --ranks 2 -- sh "$work/odd" "$MOK" train $options --steps 6 --out "$work/odd-out" 2>"$work/odd-log"
[ $? = 1 ] || fail "ranks with other seeds must end with 1"
grep -q 'rank 1 runs with seed 2, rank 0 with 1' "$work/odd-log" || fail "other seeds: $(cat "$work/odd-log")"

# Rank 1 gets signal $1 once a checkpoint is there.
disturb() {
    signal=$1
    cat >"$work/victim" <<'VICTIM'
signal=$1
checkpoint=$2
shift 2
if [ "$MOK_RANK" = 1 ]; then
    (
        while [ ! -s "$checkpoint" ]; do sleep 0.02; done
        sleep 0.1
        kill -s $signal $$
    ) &
fi
exec "$@"
VICTIM
    begin=$(date +%s)
    # shellcheck disable=SC2086 # a list of options
    "$MOK" launch --ranks 3 --grace 4 -- sh "$work/victim" "$signal" "$work/cut/checkpoint.safetensors" \
        "$MOK" train $options --steps 5000 --save-every 2 --threads 1 --timeout-ms 1500 --out "$work/cut" \
        >/dev/null 2>"$work/cut-log"
    code=$?
    spent=$(($(date +%s) - begin))
    [ $code != 0 ] || fail "$signal: the launcher must not end with 0"
    [ $spent -le 60 ] || fail "$signal: it took $spent s"
    grep -q 'rank [02] waited for rank 1 in phase' "$work/cut-log" || fail "$signal: $(cat "$work/cut-log")"
    pgrep -f "$work/cut" >/dev/null && fail "$signal: a process is left"
    now=$(objects)
    [ "$now" = "$before" ] || fail "$signal: objects in /dev/shm: $before before, $now after"
}

# All are killed while they meet: rank 1 ends before it opens, and rank 0 gets no time to notice. The launcher takes
# their name away.
"$MOK" launch --ranks 2 --grace 0 -- sh -c '[ "$MOK_RANK" = 1 ] && sleep 0.5 && exit 7; exec "$@"' sh \
    "$MOK" train $options --steps 6 --out "$work/met" >/dev/null 2>&1
[ $? = 7 ] || fail "the launcher must end with the first rank's code"
now=$(objects)
[ "$now" = "$before" ] || fail "killed while they met: objects in /dev/shm: $before before, $now after"

disturb KILL
# The last checkpoint is whole; at another number of ranks it leads where an undisturbed run leads.
# shellcheck disable=SC2086 # a list of options
whole=$("$MOK" train $options --steps 5000 --stop-at 120 --out "$work/whole" | tail -n 1)
# shellcheck disable=SC2086 # a list of options
got=$("$MOK" train $options --steps 5000 --stop-at 120 --out "$work/again" --ranks 2 --resume "$work/cut" | tail -n 1)
[ "$got" = "$whole" ] || fail "resumed: '$got', undisturbed: '$whole'"
rm -rf "$work/cut"
disturb STOP
exit $failed
